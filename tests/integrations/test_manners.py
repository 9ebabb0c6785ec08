"""A fit is a guest in the process of another program: what it leaves alone there, through every door."""

import sys
import time
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode
from trainings.doors import DOORS

import perf_callbacks
from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

pytestmark = pytest.mark.usefixtures("accelerate_state")

OURS = str(Path(perf_callbacks.__file__).parent)


@pytest.mark.parametrize("way", DOORS)
def test_a_mocked_clock_is_never_read_by_us(tmp_path, monkeypatch, way):
    readers = set()

    def mocked(original):
        def read(*args):
            readers.add(sys._getframe(1).f_code.co_filename)
            return original(*args)

        return read

    for name in ("perf_counter", "monotonic", "sleep", "time"):
        monkeypatch.setattr(time, name, mocked(getattr(time, name)))
    DOORS[way](tmp_path, steps=4, evaluate=2, save=2, report=True).run()
    assert [reader for reader in readers if reader.startswith(OURS)] == []


class Attributes(TorchFunctionMode):
    """A mode of the program that notes each read of an attribute by this package."""

    def __init__(self):
        super().__init__()
        self.read = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        caller = sys._getframe(1).f_code.co_filename
        if func.__name__ == "__get__" and caller.startswith(OURS):
            self.read.append(caller)
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_program_sees_no_read_of_a_batch(tmp_path):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(tmp_path), flops="off")
    loader = [(torch.ones(3, 4), torch.ones(3, 2))] * 12
    with Attributes() as mode, measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for inputs, targets in perf.loader:
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [file for file in mode.read if "batches" in file or "loop/watch" in file] == []
    assert perf.summary.samples == 36
