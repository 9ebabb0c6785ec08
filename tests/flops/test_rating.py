"""What work is compared with."""

import dataclasses

import pytest
from rows import each_row

from perf_callbacks.flops.by_shape.rating import PeakRating
from perf_callbacks.flops.count_records import estimated
from perf_callbacks.flops.peaks.peak_rates import Peaks
from perf_callbacks.flops.work import Work, WorkKey
from perf_callbacks.kernel.engine.steps import StepFlops

WORK = Work(
    {
        WorkKey("forward", "bfloat16", "matmul"): 6_000,
        WorkKey("backward", "float32", "matmul"): 2_000,
        WorkKey("recompute", "float32", "matmul"): 9_000,
    }
)
PEAKS = Peaks({"bfloat16": 4_000.0, "float32": 1_000.0}, "by hand")


COUNT = dataclasses.replace(estimated(WORK, 2), coverage=1.0, lower_bound=False)


def rated(peaks=PEAKS):
    return PeakRating.from_count(COUNT, peaks)


def test_mfu_goes_by_the_main_format_and_mfu_mixed_by_each():
    rating = rated()
    assert (rating.dtype, rating.peak_flops_per_second) == ("bfloat16", 4_000.0)
    effort = rating.effort(WORK)
    assert effort == StepFlops(8_000, 17_000, 6_000 / 4_000 + 2_000 / 1_000)
    assert rating.metrics(effort, 10.0) == {
        "tflops": 800e-12,
        "hardware_tflops": 1_700e-12,
        "flops_coverage": 1.0,
        "mfu": 0.2,
        "hfu": pytest.approx(0.425),
        "mfu_mixed": 0.35,
        "peak_tflops": 4_000e-12,
    }


def test_without_a_peak_there_are_flops_and_no_ratios():
    rating = rated(None)
    assert rating.effort(WORK) == StepFlops(8_000, 17_000, None)
    assert rating.metrics(rating.effort(WORK), 10.0).keys() == {"tflops", "hardware_tflops", "flops_coverage"}


def test_a_format_without_a_peak_costs_only_the_mixed_ratio():
    metrics = rated(Peaks({"bfloat16": 4_000.0}, "by hand")).metrics(StepFlops(8_000, 17_000, None), 10.0)
    assert (metrics["mfu"], metrics["mfu_mixed"]) == (0.2, None)


MEASURED = "training ran faster than the measured peak"
STATED = "training ran faster than the stated peak of 4e-09 TFLOPS in bfloat16"


@each_row(
    ("peaks", "seconds", "refuted"),
    [
        (Peaks({"bfloat16": 4_000.0}, "x", measured=True), 4.0, MEASURED),
        (Peaks({"bfloat16": 4_000.0}, "x", measured=True), 4.5, None),
        (Peaks({"bfloat16": 4_000.0}, "a data sheet"), 4.0, STATED),
        (Peaks({"bfloat16": 4_000.0}, "a data sheet"), 4.5, None),
        (Peaks({"float32": 4_000.0}, "x", measured=True), 4.0, None),
        (None, 4.0, None),
    ],
)
def test_a_peak_is_refuted_by_steps_that_did_more(peaks, seconds, refuted):
    rating = rated(peaks)
    assert rating.refuted(StepFlops(8_000, 17_000, None), seconds) == refuted


@each_row(
    ("counts", "share"),
    [([1_700] * 2, 0.9), ([1_700, 3_400], None), ([1_700, 3_400] * 2, None), ([0] * 2, None), ([0, 1_700], None)],
)
def test_the_unmasked_share_is_known_while_all_counts_agree(counts, share):
    rating = None
    for masked in counts:
        rating = PeakRating.from_count(dataclasses.replace(COUNT, masked_flops=masked), None, rating)
    assert rating.unmasked_share == share
