"""The registry of metrics is true: a fit has a metric exactly if the metric's needs are met."""

from dataclasses import replace
from time import perf_counter

import pytest
import torch
from metric_keys import keys
from torch.utils.data import DataLoader
from trainings.models import Tokens, llama
from trainings.runs import records

from perf_callbacks import PerfConfig
from perf_callbacks.integrations.loop import measurement
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.process.device_facts import Allocator, Timing
from perf_callbacks.kernel.process.event_timeline import EventTimeline
from perf_callbacks.kernel.records.fit_records import Row
from perf_callbacks.kernel.records.metric_table import (
    CLOCK,
    DEVICES,
    FLOPS,
    GC,
    GPU,
    JOB,
    JOB_GPUS,
    LOWER_BOUND,
    MASK,
    METRICS,
    PEAK,
    RANKS,
    RESUMED,
    SEVERAL_RANKS,
)

ALONE = sorted({need for metric in METRICS for need in metric.needs} - {RANKS, SEVERAL_RANKS, JOB, JOB_GPUS})
"""Needs that a single process can meet. Two ranks are in `tests/stragglers/test_observer.py`."""


class HostEvent:
    """A device's event, on the clock of the host."""

    def record(self):
        self.at = perf_counter()

    def query(self):
        return True

    def elapsed_time(self, end):
        return (end.at - self.at) * 1000


def journaled(directory, monkeypatch, met):
    """Keys in the last row of a real fit that meets these needs alone."""
    place = measurement.of_loop
    monkeypatch.setattr(measurement, "of_loop", lambda *args: replace(place(*args), devices=1 + (DEVICES in met)))
    monkeypatch.setattr(device.Cpu, "timing", lambda _: Timing(None if CLOCK in met else EventTimeline(HostEvent)))
    monkeypatch.setattr(device.Cpu, "allocator", lambda _: Allocator(1, 1, 0, 1) if GPU in met else None)
    settings = {
        "gc": "sync" if GC in met else "off",
        "flops": "count" if FLOPS in met else "off",
        "peak_tflops": "1" if PEAK in met else None,
        "measure_peak": "off",
    }
    model, config = llama(), PerfConfig(output_dir=str(directory), **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Tokens(16, mask=MASK in met), batch_size=4)
    resume = (
        {"first_unix": 0.0, "elapsed_seconds": 1.0, "productive_seconds": 0.5, "step": 4} if RESUMED in met else None
    )
    with measurement.measure(model=model, optimizer=optimizer, loader=loader, config=config, resume=resume) as perf:
        for batch in perf.loader:
            loss = model(**batch).loss
            if LOWER_BOUND in met:
                torch.linalg.matrix_exp(torch.ones(8, 8))  # its FLOPs are unknown
            loss.backward()
            optimizer.step()
            perf.row()
    return records(directory, Row)[-1].metrics.keys()


@pytest.mark.parametrize("missing", [None, *ALONE])
def test_a_fit_has_the_metrics_whose_needs_it_meets(tmp_path, monkeypatch, missing):
    met = {*ALONE} - {missing}
    assert journaled(tmp_path, monkeypatch, met) == keys(*met)
