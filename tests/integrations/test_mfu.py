"""MFU and HFU as they are logged: by which peak, in which number format, and why they are missing."""

import logging

import pytest
import torch
from counted import fit, gpt2, ids
from metric_keys import needing
from rows import each_row
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from trainings.models import llama
from trainings.runs import records, unwrapped

from perf_callbacks import PerfConfig
from perf_callbacks.flops import count_records
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.peaks.peak_rates import Peaks
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.process.device_facts import Features
from perf_callbacks.kernel.records.fit_records import Row
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.metric_table import PEAK
from perf_callbacks.loop import measure
from perf_callbacks.report import cards

ROWS, WIDTH = 32, 64
PRODUCT = 2 * ROWS * WIDTH * WIDTH
BATCHES = [torch.ones(ROWS, WIDTH)] * 6


class TwoFormats(nn.Module):
    """A body that autocast computes in bfloat16, and a head that is kept out of it."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.body(x)
        return self.head(x.float())


def test_a_model_in_two_formats_is_rated_by_the_heavier_and_by_both(tmp_path):
    """The body has no gradient of its input, so it is two products; the head three, in float32."""
    rows = []
    summary = fit(tmp_path, TwoFormats(), BATCHES, peak_tflops="bf16=0.4,fp32=0.1", rows=rows).summary
    row = rows[-1]
    (counted,) = records(tmp_path, Flops)
    assert counted.by_dtype == {"bfloat16": 2 * PRODUCT, "float32": 3 * PRODUCT}
    assert records(tmp_path, Row)[-1].metrics["perf/peak_tflops"] == 0.1
    seconds = row["perf/step_time"]
    assert row["perf/mfu"] == row["perf/hfu"] == pytest.approx(5 * PRODUCT / seconds / 0.1e12, rel=1e-4)
    ideal = 2 * PRODUCT / 0.4e12 + 3 * PRODUCT / 0.1e12
    assert row["perf/mfu_mixed"] == pytest.approx(ideal / seconds, rel=1e-4)
    seconds = summary.included_seconds / summary.included_steps
    assert (summary.mfu, summary.flops.dtype) == (pytest.approx(5 * PRODUCT / seconds / 0.1e12), "float32")


@pytest.fixture
def knobs():
    """Of float32 on a GPU; afterwards as before."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield torch.backends
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


A100, T4 = Features(tf32=True), Features(half="fp16", tensor_cores=True)


@each_row(("chip", "allowed", "dtype"), [(A100, False, "float32"), (A100, True, "tfloat32"), (T4, True, "float32")])
def test_float32_on_a_gpu_is_tfloat32_where_the_knobs_say_so(knobs, monkeypatch, chip, allowed, dtype):
    """Convolutions have a knob of their own."""
    monkeypatch.setattr(device.Cuda, "features", lambda _: chip)
    knobs.cuda.matmul.allow_tf32, knobs.cudnn.allow_tf32 = allowed, not allowed
    other = "tfloat32" if chip is A100 and not allowed else "float32"
    with FakeTensorMode():
        with FlopCounter() as product:
            _ = torch.empty(4, 8, device="cuda") @ torch.empty(8, 2, device="cuda")
        with FlopCounter() as convolution:
            nn.functional.conv1d(torch.empty(1, 2, 8, device="cuda"), torch.empty(4, 2, 3, device="cuda"))
    assert product.work().by_dtype == {dtype: 2 * 4 * 8 * 2}
    assert convolution.work().by_dtype == {other: 2 * 6 * 4 * 2 * 3}


def test_products_in_eight_bits_go_by_the_peak_of_eight_bits():
    eight, scale = torch.ones(16, 16).to(torch.float8_e4m3fn), torch.ones(())
    with FlopCounter() as counter:
        torch._scaled_mm(eight, eight.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    assert counter.work().by_dtype == {"float8_e4m3fn": 2 * 16**3}
    assert Peaks({"float8": 5.0}, "x").peak_flops_per_second("float8_e4m3fn") == 5.0


@pytest.mark.parametrize(
    ("measured", "peak"), [(True, "the measured peak"), (False, "the stated peak of 1e-12 TFLOPS in float32")]
)
def test_training_faster_than_a_peak_withdraws_it_and_says_so_once(tmp_path, monkeypatch, caplog, measured, peak):
    forgotten = []
    monkeypatch.setattr(count_records, "find", lambda *_: Peaks({"float32": 1.0}, "whatever", measured=measured))
    monkeypatch.setattr(count_records, "forget", forgotten.append)
    summary = fit(tmp_path, TwoFormats(), BATCHES, rows=[]).summary
    assert [record.getMessage() for record in caplog.records] == [
        f"perf_callbacks: training ran faster than {peak}; MFU and HFU are left out from now on."
    ]
    assert forgotten == [torch.device("cpu")] * measured
    assert all("perf/tflops" in row.metrics and "perf/mfu" not in row.metrics for row in records(tmp_path, Row))
    assert (summary.mfu, summary.hfu, summary.flops.peak_source) == (None, None, None)
    assert summary.flops.model_flops > 0


def test_a_peak_that_training_beats_is_withdrawn_without_any_row(tmp_path):
    summary = fit(tmp_path, TwoFormats(), BATCHES, peak_tflops="0.000000000001").summary
    reason = "training ran faster than the stated peak of 1e-12 TFLOPS in float32"
    assert (summary.mfu, summary.hfu, summary.flops.mfu_unknown) == (None, None, reason)
    assert f"MFU unknown: {reason}" in card(summary)


def test_a_device_without_a_peak_has_no_mfu_but_a_sentence_of_advice(tmp_path, caplog):
    rows = []
    with caplog.at_level(logging.WARNING, "perf_callbacks"):
        summary = fit(tmp_path, TwoFormats(), BATCHES, measure_peak="off", rows=rows).summary
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "peak_tflops" in warning
    assert "perf/tflops" in rows[-1]
    assert not needing(PEAK) & rows[-1].keys()
    assert (summary.mfu, summary.hfu, summary.flops.unknown) == (None, None, None)
    assert summary.flops.mfu_unknown.startswith("no dense peak is known for ")
    assert f"MFU unknown: {summary.flops.mfu_unknown}" in card(summary)


def test_a_number_format_without_a_peak_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(count_records, "find", lambda *_: Peaks({"bfloat16": 1e12}, "a data sheet"))
    summary = fit(tmp_path, nn.Linear(WIDTH, WIDTH), BATCHES).summary
    assert summary.flops.mfu_unknown == "no peak is known for float32 (a data sheet)"


def test_a_measured_peak_is_called_so_where_a_person_sees_it(tmp_path, capsys):
    summary = fit(tmp_path, TwoFormats(), BATCHES).summary
    assert summary.flops.peak_measured
    assert summary.flops.peak_source.startswith("measured on cpu with 1 thread")
    assert f"MFU {summary.mfu:.1%}, HFU {summary.hfu:.1%} of measured peak" in unwrapped(capsys.readouterr().out)


@pytest.mark.parametrize("lengths", [(16,), (16, 12)], ids=str)
def test_hfu_without_the_masked_half_is_known_while_all_steps_share_it(tmp_path, lengths):
    summary = fit(tmp_path, llama(), [ids(2, length) for length in lengths * 8], peak_tflops="1").summary
    record = records(tmp_path, Flops)[0]
    pairs = 2 * 2 * 8 * sum(range(lengths[-1]))  # batch, heads, width of a head
    assert record.masked_flops == 2 * (2 + 5) * pairs  # the second step is counted
    assert summary.hfu > 0
    if len(lengths) > 1:
        assert (summary.hfu_causal, summary.flops.unmasked_share) == (None, None)
    else:
        unmasked = 1 - record.masked_flops / record.hardware_flops
        assert summary.hfu_causal == pytest.approx(summary.hfu * unmasked)


def card(summary):
    return [line.strip() for line in unwrapped(cards.closing(summary)).splitlines()]


def test_a_fit_that_ends_before_a_count_says_so(tmp_path):
    summary = fit(tmp_path, nn.Linear(WIDTH, WIDTH), BATCHES[:1]).summary
    assert "TFLOPS and MFU unknown: the fit ended before a step was counted" in card(summary)


@each_row(
    ("lengths", "flops", "source"),
    [
        ([8] * 6, "count", "counted"),
        ([8, 8, 9, 10, 11], "count", "counted, scaled"),
        ([8] * 6, "estimate", "fake-tensor copy"),
    ],
)
def test_the_card_says_where_flops_come_from(tmp_path, lengths, flops, source):
    batches, directory = [ids(2, length) for length in lengths], tmp_path / source
    summary = fit(directory, gpt2(), batches, flops=flops, peak_tflops="1").summary
    assert summary.flops.source == source
    (line,) = [line for line in card(summary) if "FLOPS of the model" in line]
    assert f", {source}" in line


@pytest.mark.parametrize(("steps", "words"), [(10, "counted once,"), (12, "counted, 100.0%")])
def test_the_card_tells_that_flops_rest_on_a_single_count(tmp_path, monkeypatch, steps, words):
    monkeypatch.setattr("perf_callbacks.flops.fingerprint.compiles", lambda: False)
    summary = fit(tmp_path, nn.Linear(WIDTH, WIDTH), BATCHES[:1] * steps, peak_tflops="1").summary
    assert any(words in line for line in card(summary))


class Spectral(nn.Linear):
    def forward(self, x):
        return super().forward(torch.linalg.matrix_exp(x[:, :8] * 0) @ x)


@pytest.mark.parametrize(("kind", "lower_bound"), [(nn.Linear, None), (Spectral, 1)])
def test_rows_have_the_share_of_counted_steps_or_the_lower_bound(tmp_path, kind, lower_bound):
    fit(tmp_path, kind(8, 8), [torch.ones(8, 8)] * 6, peak_tflops="1", rows=[])
    row = records(tmp_path, Row)[-1].metrics
    assert "perf/mfu" in row
    assert (row["perf/flops_known"], row.get("perf/flops_lower_bound")) == (1, lower_bound)


def test_an_evaluation_in_each_step_is_why_there_are_no_metrics(tmp_path, caplog):
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = PerfConfig(output_dir=str(tmp_path), peak_tflops="1")
    with measure(model=model, optimizer=optimizer, loader=BATCHES[:5], config=config) as perf:
        for batch in perf.loader:
            model(batch).sum().backward()
            optimizer.step()
            with perf.evaluation():
                pass
            perf.row()
    messages = [record.getMessage() for record in caplog.records if "no metrics" in record.getMessage()]
    assert messages == [
        "perf_callbacks: no metrics at step 5: all steps since the last row are excluded (1 evaluation)."
    ]
    (line,) = [line for line in card(perf.summary) if "MFU unknown" in line]
    assert line.startswith("TFLOPS and MFU unknown: all steps are excluded: 3 evaluation, 1 first")
