"""Few Python frames of an ordinary step are ours: frames are what measuring costs."""

import statistics
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from trainings.accelerated import an_accelerator, prepared, rows_of_tokens
from trainings.models import Tokens, llama

import perf_callbacks
from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.flops import fingerprint
from perf_callbacks.loop import measure

OURS = str(Path(perf_callbacks.__file__).parent)
WARM, STEPS = 70, 110
"""Steps before the first that is looked at, after which a batch is recognised by one tensor; and all steps."""


class Frames:
    """The frames of ours, step by step."""

    def __init__(self):
        self.steps = [[]]

    def ended(self):
        self.steps.append([])

    @contextmanager
    def watched(self):
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _see(self, frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS):
            self.steps[-1].append(f"{code.co_filename.removeprefix(OURS)}:{code.co_firstlineno} {code.co_name}")

    @property
    def ordinary(self):
        """The frames of the most frequent kind of step: in the others, steps are written or garbage is collected."""
        usual = statistics.mode(map(len, self.steps[WARM:-1]))
        return next(frames for frames in self.steps[WARM:-1] if len(frames) == usual)


@pytest.mark.parametrize(("flops", "compiled"), [("count", False), ("count", True), ("off", False)])
def test_an_ordinary_step_of_a_plain_loop_has_six_frames(tmp_path, monkeypatch, flops, compiled):
    monkeypatch.setattr(fingerprint, "compiles", lambda: compiled)  # something else in the process
    model, frames = llama(), Frames()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Tokens(STEPS, mask=False), batch_size=1)
    config = PerfConfig(output_dir=str(tmp_path), flops=flops)
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf, frames.watched():
        for batch in perf.loader:
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            frames.ended()
    assert len(frames.ordinary) <= 6, "\n".join(frames.ordinary)


@pytest.mark.parametrize("flops", ["count", "off"])
def test_an_ordinary_step_with_accelerate_has_ten_frames(tmp_path, flops):
    accelerator, frames = an_accelerator(tmp_path), Frames()
    with attach(accelerator, PerfConfig(flops=flops)):
        model, optimizer, loader, _ = prepared(accelerator, rows_of_tokens(STEPS, batch_size=1, mask=False))
        with frames.watched():
            for batch in loader:
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                frames.ended()
    assert len(frames.ordinary) <= 10, "\n".join(frames.ordinary)
