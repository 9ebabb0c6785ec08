"""Loops that raise, are caught and forgotten: the watchdog gives everything back, without a call of ours."""

import gc
import time
import weakref

import pytest
import torch
from accelerate import Accelerator
from collector import automatic
from torch.utils.data import DataLoader

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.process import collector
from perf_callbacks.loop import measure

FROZEN_AFTER = 10  # the first full collection of a schedule with an interval of 1


KEPT = []


def kept_accelerator(model, optimizer, loader, config):
    """As in a script, whose names outlive the exception."""
    KEPT.append(Accelerator(cpu=True))
    accelerate_loop(model, optimizer, loader, config, KEPT[0])


def accelerate_loop(model, optimizer, loader, config, accelerator=None):
    accelerator = accelerator or Accelerator(cpu=True)
    attach(accelerator, config)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for number, batch in enumerate(loader, 1):
        accelerator.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()
        fail_after(number)


def loop_without_with(model, optimizer, loader, config):
    perf = measure(model=model, optimizer=optimizer, loader=loader, config=config).__enter__()
    for number, batch in enumerate(perf.loader, 1):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        fail_after(number)


def fail_after(number):
    if number == FROZEN_AFTER + 2:
        assert not automatic()
        raise RuntimeError("out of memory, say")


def train(loop, directory):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(directory), gc_interval=1, peak_tflops="1")
    with pytest.raises(RuntimeError, match="out of memory"):
        loop(model, optimizer, DataLoader(torch.ones(99, 2)), config)
    return weakref.ref(model), weakref.ref(optimizer)


@pytest.mark.usefixtures("accelerate_state", "thawed")
@pytest.mark.parametrize(
    "loop",
    [*[pytest.param(one, marks=pytest.mark.slow) for one in (accelerate_loop, kept_accelerator)], loop_without_with],
)
def test_collector_patches_and_memory_of_an_abandoned_loop_come_back(tmp_path, monkeypatch, loop):
    monkeypatch.setattr(collector, "gc", gc)  # the real one
    backward, callbacks = torch.autograd.backward, [*gc.callbacks]
    model, optimizer = train(loop, tmp_path)
    owner = collector.COLLECTOR
    if loop is not accelerate_loop:  # an accelerator that is freed ends its fit
        assert gc.get_freeze_count() > collector.OWN_FROZEN
        assert (automatic(), model() is None) == (False, False)
    for second in range(600):  # twenty times the longest step, on a busy machine too
        owner.tick(time.monotonic() + second)  # the watchdog itself ticks by this clock
    assert (automatic(), gc.get_freeze_count() < collector.OWN_FROZEN) == (True, True)
    KEPT.clear()  # an accelerator holds on to what it prepared
    while model() is not None:  # another thread may just be writing the summary so far: automatic collections go on
        gc.collect()
        time.sleep(0.01)
    assert (automatic(), model(), optimizer()) == (True, None, None)
    assert gc.get_freeze_count() < collector.OWN_FROZEN
    assert (torch.autograd.backward, [*gc.callbacks], owner.held) == (backward, callbacks, set())
