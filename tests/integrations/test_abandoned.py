"""A fit that nobody ends is freed as soon as its owner lets go of it: nothing of ours holds on to it."""

import contextlib
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import DataLoader
from trainings import lightning_kit, models
from trainings.accelerated import an_accelerator

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

pytestmark = pytest.mark.usefixtures("accelerate_state")


class Stop(Exception):  # noqa: N818 no error
    """Ends a loop in the midst of a step."""


class Model(nn.Module):
    """Fails in one of its calls."""

    fails_in = 5

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 1), 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls == self.fails_in:
            raise Stop
        return self.layer(inputs).mean()


def loop(directory):
    """A plain loop that never leaves its block."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.ones(20, 4), batch_size=2)
    config = PerfConfig(output_dir=str(directory))
    perf = measure(model=model, optimizer=optimizer, loader=loader, config=config).__enter__()
    yield from (model, optimizer, loader, perf)
    for batch in perf.loader:
        model(batch).backward()
        optimizer.step()


def accelerate(directory):
    accelerator = an_accelerator(directory)
    perf = attach(accelerator)
    model = Model()
    loader = DataLoader(torch.ones(20, 4), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    yield from (accelerator, perf, model, optimizer, loader)
    for batch in loader:
        accelerator.backward(model(batch))
        optimizer.step()


def transformers(directory):
    ours = PerfCallback()
    trainer = models.trainer(models.training_arguments(directory), ours)
    yield from (trainer, ours, trainer.model)
    trainer.model.register_forward_hook(_fifth())
    trainer.train()


def lightning(directory):
    ours, module = lightning_kit.tree().PerfCallback(), lightning_kit.tree().Automatic()
    trainer = lightning_kit.trainer(directory, ours)
    yield from (trainer, ours, module)
    module.net.register_forward_hook(_fifth())
    trainer.fit(module, lightning_kit.loader())


def _fifth():
    calls = []

    def hook(*_):
        calls.append(None)
        if len(calls) == 5:
            raise Stop

    return hook


@pytest.mark.parametrize("way", [loop, accelerate, transformers, lightning], ids=lambda way: way.__name__)
def test_three_fits_that_raised_and_were_forgotten_are_freed(tmp_path, way):
    backward, collector = torch.autograd.backward, list(gc.callbacks)

    gone = []
    for _ in range(3):
        begun = []
        try:
            for one in way(tmp_path):
                begun.append(weakref.ref(one))
                del one
        except Stop:
            gone += begun
        gc.collect()
        assert [one() for one in gone] == [None] * len(gone)
        assert (torch.autograd.backward, gc.callbacks) == (backward, collector)
    assert len(gone) >= 9


@pytest.mark.parametrize("way", [loop, accelerate], ids=lambda way: way.__name__)
def test_a_loop_that_raises_in_its_counted_step_leaves_no_mode(tmp_path, monkeypatch, way):
    monkeypatch.setattr(Model, "fails_in", 2)
    alive = []
    with contextlib.suppress(Stop):
        alive.extend(way(tmp_path))
    assert _get_current_dispatch_mode_stack() == []
    alive.clear()
    gc.collect()
