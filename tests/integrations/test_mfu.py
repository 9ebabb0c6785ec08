"""MFU and HFU as they are logged: against what they are divided by, in which number format, and when not at all."""

import logging

import pytest
import torch
from counted import ids, loop
from metric_keys import needing
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
from perf_callbacks.kernel.records.fit_records import Row, Summary
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.metric_table import PEAK
from perf_callbacks.loop import measure

ROWS, WIDTH = 32, 64
PRODUCT = 2 * ROWS * WIDTH * WIDTH


class TwoFormats(nn.Module):
    """A body that autocast computes in bfloat16, and a head that is kept out of it."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.body(x)
        return self.head(x.float())


def fit(directory, *, steps=6, model=None, loader=None, **config):
    model = TwoFormats() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    settings = PerfConfig(output_dir=str(directory), gc="observe", **config)
    with measure(
        model=model, optimizer=optimizer, loader=loader or [torch.ones(ROWS, WIDTH)] * steps, config=settings
    ) as perf:
        for batch in perf.loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        row = perf.row()
    return row, perf.summary


def test_a_model_in_two_formats_is_rated_by_the_heavier_one_and_by_both(tmp_path):
    """The body has no gradient of its input, so it is two products; the head three, in float32."""
    row, summary = fit(tmp_path, peak_tflops="bf16=0.4,fp32=0.1")
    (counted,) = records(tmp_path, Flops)
    assert counted.by_dtype == {"bfloat16": 2 * PRODUCT, "float32": 3 * PRODUCT}
    seconds = summary.included_seconds / summary.included_steps
    assert records(tmp_path, Row)[-1].metrics["perf/peak_tflops"] == 0.1
    assert row["perf/mfu"] == row["perf/hfu"] == pytest.approx(5 * PRODUCT / seconds / 0.1e12, rel=1e-4)
    ideal = 2 * PRODUCT / 0.4e12 + 3 * PRODUCT / 0.1e12
    assert row["perf/mfu_mixed"] == pytest.approx(ideal / seconds, rel=1e-4)
    assert (summary.mfu, summary.flops.dtype) == (pytest.approx(row["perf/mfu"], rel=1e-4), "float32")


@pytest.fixture
def knobs(monkeypatch):
    """Of float32 on an A100; afterwards as before."""
    monkeypatch.setattr(device.Cuda, "features", lambda _: Features(tf32=True))
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield torch.backends
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(("allowed", "dtype"), [(False, "float32"), (True, "tfloat32")])
def test_float32_on_a_gpu_is_tfloat32_where_the_knob_says_so(knobs, allowed, dtype):
    knobs.cuda.matmul.allow_tf32 = allowed
    with FakeTensorMode(), FlopCounter() as counter:
        _ = torch.empty(4, 8, device="cuda") @ torch.empty(8, 2, device="cuda")
    assert counter.work().by_dtype == {dtype: 2 * 4 * 8 * 2}


def test_float32_on_a_gpu_without_tfloat32_is_float32(knobs, monkeypatch):
    monkeypatch.setattr(device.Cuda, "features", lambda _: Features(half="fp16", tensor_cores=True))  # a T4
    knobs.cuda.matmul.allow_tf32 = True
    with FakeTensorMode(), FlopCounter() as counter:
        _ = torch.empty(4, 8, device="cuda") @ torch.empty(8, 2, device="cuda")
    assert counter.work().by_dtype == {"float32": 2 * 4 * 8 * 2}


@pytest.mark.parametrize(("allowed", "dtype"), [(False, "float32"), (True, "tfloat32")])
def test_convolutions_have_a_knob_of_their_own(knobs, allowed, dtype):
    knobs.cudnn.allow_tf32 = allowed
    with FakeTensorMode(), FlopCounter() as counter:
        nn.functional.conv1d(torch.empty(1, 2, 8, device="cuda"), torch.empty(4, 2, 3, device="cuda"))
    assert counter.work().by_dtype == {dtype: 2 * 6 * 4 * 2 * 3}


def test_products_in_eight_bits_go_by_the_peak_of_eight_bits():
    eight = torch.ones(16, 16).to(torch.float8_e4m3fn)
    one = torch.ones(())
    with FlopCounter() as counter:
        torch._scaled_mm(eight, eight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    assert counter.work().by_dtype == {"float8_e4m3fn": 2 * 16**3}
    assert Peaks({"float8": 5.0}, "x").peak_flops_per_second("float8_e4m3fn") == 5.0


@pytest.mark.parametrize(
    ("measured", "called"),
    [(True, "the measured peak"), (False, "the stated peak of 1e-12 TFLOPS in float32")],
)
def test_more_than_a_peak_withdraws_it_and_says_so_once(tmp_path, monkeypatch, caplog, measured, called):
    forgotten = []
    monkeypatch.setattr(count_records, "find", lambda *_: Peaks({"float32": 1.0}, "whatever", measured=measured))
    monkeypatch.setattr(count_records, "forget", forgotten.append)
    model = TwoFormats()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = PerfConfig(output_dir=str(tmp_path), gc="observe")
    loader = [torch.ones(ROWS, WIDTH)] * 8
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for batch in perf.loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            perf.row()
    assert [record.getMessage() for record in caplog.records] == [
        f"perf_callbacks: training ran faster than {called}; MFU and HFU are left out from now on."
    ]
    assert forgotten == [torch.device("cpu")] * measured
    assert all("perf/tflops" in row.metrics and "perf/mfu" not in row.metrics for row in records(tmp_path, Row))
    assert (perf.summary.mfu, perf.summary.hfu, perf.summary.flops.peak_source) == (None, None, None)
    assert perf.summary.flops.model_flops > 0


def test_without_leave_to_measure_there_is_no_mfu_but_a_sentence_of_advice(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "perf_callbacks"):
        row, summary = fit(tmp_path, measure_peak="off")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "peak_tflops" in warning
    assert "perf/tflops" in row
    assert not needing(PEAK) & row.keys()
    assert (summary.mfu, summary.hfu) == (None, None)


def test_a_measured_peak_is_called_so_where_a_person_sees_it(tmp_path, capsys):
    _, summary = fit(tmp_path)
    assert summary.flops.peak_measured
    assert summary.flops.peak_source.startswith("measured on cpu with 1 thread")
    said = unwrapped(capsys.readouterr().out)
    assert f"MFU {summary.mfu:.1%}, HFU {summary.hfu:.1%} of measured peak" in said


@pytest.mark.parametrize("lengths", [(16,), (16, 12)], ids=str)
def test_hfu_without_the_masked_half_is_known_while_all_steps_share_it(tmp_path, lengths):
    loader = [ids(2, length) for length in lengths * 8]
    loop(tmp_path, llama(), loader, peak_tflops="1")
    (summary,) = records(tmp_path, Summary)
    record = records(tmp_path, Flops)[0]
    pairs = 2 * 2 * 8 * sum(range(lengths[-1]))  # batch, heads, width of a head
    assert record.masked_flops == 2 * (2 + 5) * pairs  # the second step is counted
    assert summary.hfu > 0
    if len(lengths) > 1:
        assert (summary.hfu_causal, summary.flops.unmasked_share) == (None, None)
    else:
        unmasked = 1 - record.masked_flops / record.hardware_flops
        assert summary.hfu_causal == pytest.approx(summary.hfu * unmasked)
