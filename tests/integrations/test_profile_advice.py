"""Profiled trainings on a CPU: the verdict reads the profile."""

import os

import pytest
import torch
from torch import nn
from trainings import models, runs

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.loop import measure
from perf_callbacks.profiles import observer
from perf_callbacks.transformers import PerfCallback

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no side process without fork")

STEPS = 14


class Transposing(nn.Module):
    """Model that mostly copies."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(500, 600))

    def forward(self, input_ids=None, labels=None):
        x = self.weight
        for _ in range(10):
            x = x.t().contiguous().t().contiguous()
        return {"loss": x.mean()}


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch):
    """The side process may get little of a busy machine, and the training thread too."""
    monkeypatch.setattr(observer, "CLOSE_SECONDS", 120.0)
    monkeypatch.setattr("perf_callbacks.kernel.process.cpu_time.read", lambda _thread: None)


def loop(directory, model, **config):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with measure(model=model, optimizer=optimizer, config=PerfConfig(output_dir=str(directory), **config)) as perf:
        for _ in range(STEPS):
            model()["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
    return perf.summary


def trainer(directory, model, **config):
    callback = PerfCallback(PerfConfig(**config))
    models.trainer(models.training_arguments(directory, max_steps=STEPS), callback, model=model).train()
    return callback.summary


@pytest.mark.parametrize("train", [loop, trainer])
def test_copies_are_a_finding_with_their_operation(tmp_path, train):
    summary = train(tmp_path, Transposing(), profile="5:2")
    (profile,) = runs.records(tmp_path, Profile)
    (found,) = [one for one in summary.findings if one.cause == "copy"]
    assert 0 < found.share <= sum([one.seconds for one in profile.copies]) / profile.span_seconds
    assert "of 2 profiled steps: aten::contiguous, " in found.evidence
    assert found in [one for one in runs.records(tmp_path, Finding) if one.cause == "copy"]


@pytest.mark.parametrize("train", [loop, trainer])
def test_without_a_profile_there_is_no_such_finding(tmp_path, train):
    assert "copy" not in {one.cause for one in train(tmp_path, Transposing()).findings}
