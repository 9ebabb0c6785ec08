"""Count our Python frames in an ordinary step, outside of the integration: frames are what costs."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import perf_callbacks
from perf_callbacks import PerfConfig
from perf_callbacks.kernel.engine.steps import BLOCK
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.settings.resolution import resolve

HOME = str(Path(perf_callbacks.__file__).parent)

IDS = torch.ones(4, 8, dtype=torch.long)

BATCHES = {
    "pair": (torch.ones(4, 8), torch.ones(4)),
    "text": {"input_ids": IDS, "labels": IDS},
    "masked": {"input_ids": IDS, "attention_mask": IDS, "labels": IDS},
    "padded": {"input_ids": IDS, "attention_mask": torch.ones(4, 8).tril().long()},
    "of two sizes": {"input_ids": IDS, "labels": IDS[:, :3]},
}

MASKED = {"masked", "padded"}
"""Batches whose masks are counted."""


@pytest.fixture
def recorder(tmp_path):
    place = FitLocation(integration="loop", directory=tmp_path, device=torch.device("cpu"))
    clock = iter(range(10**6)).__next__  # a call into C, as the real one
    recorder = Recorder(resolve(PerfConfig(journal=False), {}), place, clock=clock)
    yield recorder
    recorder.close()


def frames(action):
    """Names of our functions that run in it."""
    names = Counter()

    def see(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            names[frame.f_code.co_name] += 1

    sys.setprofile(see)
    try:
        action()
    finally:
        sys.setprofile(None)
    return names


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_and_the_end_of_an_ordinary_step_take_three_frames(recorder, name, monkeypatch):
    """A fourth frame where a mask is counted. The integrations end an ordinary step without these frames."""
    monkeypatch.setattr("perf_callbacks.kernel.engine.engine.FLUSH_SECONDS", float("inf"))
    taken = []
    for step in range(1, 3 * BLOCK + 1):

        def ordinary(step=step):
            recorder.batch(BATCHES[name])
            recorder.end_step(step)

        taken.append(frames(ordinary))
    # in one step of a block it is written, in one of five it is looked at the parameters: these steps are long
    ordinary = {"batch": 1, "end_step": 2} | ({"read": 1} if name in MASKED else {})
    assert taken[-BLOCK:].count(ordinary) >= BLOCK * 0.75
