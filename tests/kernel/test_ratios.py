"""Totals to metrics."""

import pytest
from fakes import STEP, Fit, a_run
from metric_keys import keys, needing

from perf_callbacks.kernel.records.metric_table import CLOCK, DEVICES, GC, MASK


def row_of(*, steps=2, run=None, amounts=(4, 32, 24), gc_timed=True, **options):
    fit = Fit(run, gc_timed=gc_timed, **options)
    fit.step(other=9)
    for _ in range(steps):
        fit.feed(*amounts)
        fit.step(**STEP)
    return fit.engine.row(fit.number)


TIMES = {f"perf/{stage}_time": seconds for stage, seconds in STEP.items()} | {"perf/step_time": 2.0}
GARBAGE = {"perf/gc_time": 0.0, "perf/gc_pause": 0.0, "perf/gc_loss": 0.0}
PER_DEVICE = {
    "perf/samples_per_second_per_device": 2.0,
    "perf/tokens_per_second_per_device": 16.0,
    "perf/useful_tokens_per_second_per_device": 12.0,
}
OVER_ALL = {"perf/samples_per_second": 2.0, "perf/tokens_per_second": 16.0, "perf/useful_tokens_per_second": 12.0}
VALUES = TIMES | GARBAGE | OVER_ALL | PER_DEVICE


def values(*met):
    """Values of the metrics whose needs are met."""
    return {key: value for key, value in VALUES.items() if key in keys(*met)}


@pytest.mark.parametrize("steps", [1, 70])
def test_a_process_alone_logs_everything(steps):
    assert row_of(steps=steps) == values(CLOCK, GC, MASK)
    assert not needing(DEVICES) & row_of().keys()
    assert row_of(steps=0) == {}


def test_each_of_several_processes_knows_only_its_own_rates():
    communication = {"perf/communication_time": 0.0}  # measured: no rank waited
    assert row_of(run=a_run(world_size=2)) == TIMES | GARBAGE | PER_DEVICE | communication


def test_devices_of_a_process_share_its_rates():
    halves = {key: value / 2 for key, value in PER_DEVICE.items()}
    assert row_of(devices=2) == values(CLOCK, GC, MASK, DEVICES) | halves


def test_collections_that_are_not_timed_are_left_out():
    assert row_of(gc_timed=False) == values(CLOCK, MASK)


@pytest.mark.parametrize(
    ("amounts", "unknown"),
    [((4, 32, None), ()), ((4, None, None), ["tokens"]), ((None, None, None), ["tokens", "samples"])],
)
def test_unknown_rates_are_left_out(amounts, unknown):
    rates = {f"perf/{name}_per_second" for name in unknown}
    assert row_of(amounts=amounts).keys() == values(CLOCK, GC).keys() - rates


def test_values_are_plain_numbers_of_six_figures():
    fit = Fit()
    fit.step(other=1)
    fit.feed(7)
    fit.step(forward=3)
    rate = fit.engine.row(2)["perf/samples_per_second"]
    assert (type(rate), rate) == (float, 2.33333)
