"""Times of an optimizer's own update."""

import copy
import io

import pytest
import torch
from torch import nn

from perf_callbacks import PerfConfig
from perf_callbacks.advice.update_times import SKIPPED, TIMED, UpdateTimes
from perf_callbacks.kernel.engine.marks import END
from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.engine.steps import WATCHED_BLOCK, Step
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.loop import measure


class Recorder:
    """The part of a recorder that has a clock, a tape, and a list of what has to be undone."""

    def __init__(self):
        self.now, self.pairs, self.undo, self.step = 0.0, [], [], 0
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


def part(times, seconds=1.0):
    """Part of the stage that the timed calls take, if the stage takes this long in a step."""
    assert times.watching
    stages = [0.0] * len(STAGES)
    stages[STAGES.index(Stage.OPTIMIZER)] = seconds
    times.steps_measured([step(0, stages), step(0, None)])
    return times.facts()["update_part"]


def step(number, seconds, excluded=None):
    return Step(number, excluded, 1, None, None, None, 0.0, 0.0, seconds)


def takes(recorder, seconds):
    def sleep(*_):
        recorder.now += seconds

    return sleep


def test_the_median_of_some_updates_and_then_the_original_again(fit):
    recorder, optimizer = fit
    optimizer.register_step_post_hook(takes(recorder, 0.25))
    times = UpdateTimes(recorder, optimizer)
    assert times.facts() == {"update_part": None}
    assert not times.watching
    for number in range(SKIPPED + TIMED):
        assert "step" in vars(optimizer), number
        optimizer.step()
    assert part(times) == 0.25
    assert "step" not in vars(optimizer)
    optimizer.step()
    for undo in recorder.undo:
        undo()


def test_only_steps_with_timed_calls_count(fit):
    """The machine is twice as slow later."""
    recorder, optimizer = fit
    optimizer.register_step_post_hook(takes(recorder, 0.25))
    times = UpdateTimes(recorder, optimizer)
    for _ in range(SKIPPED + TIMED):
        optimizer.step()
        recorder.step += 1
    for number in range(100):
        stages = [0.0] * len(STAGES)
        stages[STAGES.index(Stage.OPTIMIZER)] = 0.5 if number < SKIPPED + TIMED else 1.0
        times.steps_measured([step(number, stages), step(number, [9.0] * len(STAGES), "counted")])
    assert times.facts() == {"update_part": 0.5}
    assert times.watching
    recorder.step += 2 * WATCHED_BLOCK
    assert not times.watching


def test_an_update_is_at_most_the_whole_stage(fit):
    recorder, optimizer = fit
    optimizer.register_step_post_hook(takes(recorder, 0.25))
    times = UpdateTimes(recorder, optimizer)
    for _ in range(SKIPPED + 1):
        optimizer.step()
    assert part(times, 0.125) == 1.0


def test_a_fit_that_ends_early_restores_the_update(fit):
    recorder, optimizer = fit
    times = UpdateTimes(recorder, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # it wraps the update again
    for _ in range(SKIPPED + 1):
        optimizer.step()
        scheduler.step()
    for undo in recorder.undo:
        undo()
    optimizer.step()
    assert part(times) == 0.0


@pytest.mark.parametrize("first", [0, 1])
def test_two_fits_with_an_optimizer_may_end_in_any_order(first):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    recorders = [Recorder(), Recorder()]
    fits = [UpdateTimes(recorder, optimizer) for recorder in recorders]
    optimizer.step()
    for recorder, timed in ((recorders[first], True), (recorders[1 - first], False)):
        for undo in recorder.undo:
            undo()
        optimizer.step()
        assert ("step" in vars(optimizer)) is timed, f"the other of {len(fits)} goes on"


def test_forward_and_backward_within_an_update_do_not_count(fit):
    recorder, optimizer = fit
    optimizer.register_step_post_hook(takes(recorder, 0.25))
    times = UpdateTimes(recorder, optimizer)

    def closure():
        recorder.now += 3.0
        recorder.pairs.extend([Stage.OPTIMIZER, recorder.now, "a collection", None])

    for _ in range(SKIPPED + 3):
        optimizer.step(closure)
    assert part(times) == 0.25


def test_an_update_ends_with_the_step_that_a_hook_ended(fit):
    recorder, optimizer = fit
    optimizer.register_step_post_hook(takes(recorder, 0.25))
    optimizer.register_step_post_hook(lambda *_: recorder.pairs.extend([END, recorder.now]))
    optimizer.register_step_post_hook(takes(recorder, 4.0))
    times = UpdateTimes(recorder, optimizer)
    for _ in range(SKIPPED + 3):
        optimizer.step()
    assert part(times) == 0.25


def test_a_timed_optimizer_can_be_copied_and_saved(fit):
    recorder, optimizer = fit
    times = UpdateTimes(recorder, optimizer)
    torch.save(optimizer, io.BytesIO())
    copied = copy.deepcopy(optimizer)
    for _ in range(SKIPPED + TIMED):
        copied.step()
    assert "step" in vars(optimizer), "no update of the copy counts"
    assert times.facts() == {"update_part": None}


def test_an_observer_that_is_gone_or_fails_does_no_harm(fit):
    recorder, optimizer = fit
    times = UpdateTimes(recorder, optimizer)
    recorder.tape = None
    for _ in range(SKIPPED + 1):
        optimizer.step()
    del times
    optimizer.step()


def test_an_error_of_the_update_reaches_the_program(fit):
    recorder, optimizer = fit
    UpdateTimes(recorder, optimizer)

    def closure():
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        optimizer.step(closure)


def test_training_goes_on_if_measuring_fails_within_an_update(monkeypatch):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    config = PerfConfig(journal=False, checklist="off", flops="off")
    steps, tapes, begin = 0, [], Tape.begin
    monkeypatch.setattr(Tape, "begin", lambda tape, now: tapes.append(tape) or begin(tape, now))
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(1, 2)] * 6, config=config) as perf:
        for batch in perf.loader:
            if steps == 3:
                tapes[-1].write = None
            model(batch).sum().backward()
            optimizer.step()
            steps += 1
    assert steps == 6
    assert perf.summary.failure
    assert "step" not in vars(optimizer)
