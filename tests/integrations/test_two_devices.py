"""A process that drives two devices: their memory is summed up, and the card says whose stages are shown."""

import pytest
import torch
from fakes import FakeStream
from torch import nn
from trainings.runs import records, unwrapped

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.process.device import Allocator, Cpu, Timing
from perf_callbacks.kernel.process.event_timeline import EventTimeline
from perf_callbacks.kernel.records.fit_records import Row, Run, Summary
from perf_callbacks.loop import measure


def train(directory, monkeypatch, *, number):
    """A loop whose model seems to lie on several devices."""
    stream = FakeStream()
    monkeypatch.setattr(device, "of_model", lambda *_: (Cpu(torch.device("cpu")),) * number)
    monkeypatch.setattr(Cpu, "timing", lambda _: Timing(EventTimeline(stream.event)))
    monkeypatch.setattr(Cpu, "allocator", lambda _: Allocator(2 * 10**9, 3 * 10**9, 0, 10**9))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(directory), peak_tflops="1")
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, 4)] * 8, config=config) as perf:
        for batch in perf.loader:
            model(batch).sum().backward()
            stream.work(0.5)
            optimizer.step()
            stream.run()
        perf.row()
    return records(directory, Run)[-1], records(directory, Row)[-1].metrics


def test_memory_is_summed_up_and_the_card_says_whose_stages(tmp_path, monkeypatch, capsys):
    run, metrics = train(tmp_path, monkeypatch, number=2)
    assert run.devices == 2
    assert metrics["perf/mfu"] == pytest.approx(metrics["perf/tflops"], rel=1e-4)  # the peak is 1 TFLOPS
    assert metrics["perf/tflops"] * 1e12 == pytest.approx(2 * (2 * 2 * 4) / 0.5 / 2)  # by hand: two products
    summary = records(tmp_path, Summary)[-1]
    assert summary.flops.mfu == pytest.approx(metrics["perf/mfu"], rel=1e-4)
    assert (metrics["perf/memory_allocated_peak_gb"], metrics["perf/memory_reserved_gb"]) == (4.0, 6.0)
    assert metrics["perf/samples_per_second_per_device"] == metrics["perf/samples_per_second"] / 2
    card = unwrapped(capsys.readouterr().out)
    assert "step time, stages and throughput on 2 devices of type cpu (device events), stages of the first" in card


def test_a_single_device_is_not_numbered(tmp_path, monkeypatch, capsys):
    run, metrics = train(tmp_path, monkeypatch, number=1)
    assert (run.devices, metrics["perf/memory_allocated_peak_gb"]) == (1, 2.0)
    card = unwrapped(capsys.readouterr().out)
    assert "step time, stages and throughput on cpu (device events), garbage" in card
