"""Times of an optimizer's own update."""

import pytest
import torch
from torch import nn

from perf_callbacks.advice.update_times import NOTHING, SKIPPED, TIMED, UpdateTimes
from perf_callbacks.kernel.engine.marks import END
from perf_callbacks.kernel.engine.stages import Stage


class Recorder:
    """The part of a recorder that has a clock, a tape, and a list of what has to be undone."""

    def __init__(self):
        self.now, self.pairs, self.undo = 0.0, [], []
        self.tape = self.patches = self

    def add(self, *undo):
        self.undo += undo

    def clock(self):
        return self.now


@pytest.fixture
def fit():
    recorder = Recorder()
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    return recorder, optimizer


def takes(recorder, seconds):
    def sleep(*_):
        recorder.now += seconds

    return sleep


def hooks(optimizer):
    return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def test_the_median_of_some_updates_without_what_comes_before_and_after(fit):
    recorder, optimizer = fit
    optimizer.register_step_pre_hook(takes(recorder, 5.0))  # such as clipping
    optimizer.register_step_post_hook(takes(recorder, 0.25))
    times = UpdateTimes(recorder, optimizer)
    optimizer.register_step_post_hook(takes(recorder, 7.0))
    assert times.facts() == {"update_seconds": None}
    for _ in range(SKIPPED + TIMED + 2):
        optimizer.step()
    assert times.facts() == {"update_seconds": 0.25}
    assert NOTHING in optimizer._optimizer_step_post_hooks.values(), "later updates call no code of ours"
    assert hooks(optimizer) == 4
    for undo in recorder.undo:
        undo()
    assert hooks(optimizer) == 3


def test_forward_and_backward_within_an_update_do_not_count(fit):
    recorder, optimizer = fit
    optimizer.register_step_post_hook(takes(recorder, 0.25))
    times = UpdateTimes(recorder, optimizer)

    def closure():
        recorder.now += 3.0
        recorder.pairs.extend([Stage.OPTIMIZER, recorder.now])

    for _ in range(SKIPPED + 3):
        optimizer.step(closure)
    assert times.facts() == {"update_seconds": 0.25}


def test_an_update_ends_with_the_step_that_another_hook_ended(fit):
    recorder, optimizer = fit
    optimizer.register_step_post_hook(takes(recorder, 0.25))
    optimizer.register_step_post_hook(lambda *_: recorder.pairs.extend([END, recorder.now]))
    optimizer.register_step_post_hook(takes(recorder, 4.0))
    times = UpdateTimes(recorder, optimizer)
    for _ in range(SKIPPED + 3):
        optimizer.step()
    assert times.facts() == {"update_seconds": 0.25}


def test_an_observer_that_is_gone_or_fails_does_no_harm(fit):
    recorder, optimizer = fit
    times = UpdateTimes(recorder, optimizer)
    recorder.clock = None
    optimizer.step()
    del times
    optimizer.step()
