"""Count the FLOPs of a fit's second optimizer step, and of later steps with new batch shapes or new model calls.

Some later steps are counted again as a check.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from threading import get_ident
from typing import Any

from torch import nn
from typing_extensions import override

from perf_callbacks.flops.count_records import CountRecords, counted, estimated
from perf_callbacks.flops.count_schedule import CountSchedule
from perf_callbacks.flops.counted_step import REST, CountedStep, why_useless
from perf_callbacks.flops.counting.count_window import CountWindow
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.counting.phases import in_backward
from perf_callbacks.flops.known_work.shape_counts import extent
from perf_callbacks.flops.known_work.shaped_work import COPY, ShapedWork
from perf_callbacks.flops.model_copy import ModelCopy
from perf_callbacks.flops.offline import Example, example_of
from perf_callbacks.flops.outline import Outlines
from perf_callbacks.flops.training_filter import TrainingFilter
from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.engine.marks import ONE_MORE_FORWARD
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.steps import COUNTED, RECOUNTED, plus
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.fit.setup import Training
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.process.backward import BACKWARDS, Listener
from perf_callbacks.kernel.process.compiler import RUNS_UNDER_MODES, compiles
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.fit_records import Run
from perf_callbacks.kernel.weak_calls import weakly

MOST_OWED = 8
"""Largest number of batch shapes that wait for a count."""

MOST_OPERATIONS = 50_000
"""A count ends after this many operations, which are the same on all ranks. A step of 80 layers has some 10,000."""

MOST_STEPS = 3
LEAST_SECONDS = 0.5
"""In a job of one rank, a count also ends after three times the time of the fit's first step. Half a second is always
allowed: noise would end the counts of short steps."""

PATIENCE_SECONDS = 5.0
PATIENCE_STEPS = 20
"""The watchdog ends a count if no operation runs for 5 seconds or for the time of 20 steps, whichever is longer. A long
time without operations may mean that the training loop has ended."""

LOOPS = ("loop", "accelerate")
"""Integrations of plain training loops. A plain loop may run a forward without calling a watched function."""

_trains = attrgetter("requires_grad")


def begin(recorder: Recorder, training: Training) -> "Counting | None":
    """Return an observer that counts the FLOPs of this fit, or None if counting is off or there is no model."""
    how = recorder.run.config["flops"]
    if training.model is None or how == "off":
        return None
    counting = Counting(recorder, training.model, live=how == "count")
    recorder.attempt(lambda begun: begun.engine.use(counting.work))
    if recorder.run.door not in LOOPS:  # a plain loop has its own listener for gradients
        recorder.patches.add(partial(BACKWARDS.release, counting))
        BACKWARDS.join(counting)
    return counting


class Counting(Observer, Listener):
    """Counts the FLOPs of some steps of a fit, and writes a `flops` record for each count.

    The metrics leave out counted steps. The first step is not counted, because it includes initialization and
    compilation. Evaluation is never counted. Compiled code runs as it does in any other step. So its count is a lower
    bound, and FLOPs that are computed on a copy of the model replace the count if the copy can run. The field `source`
    of the record says how the FLOPs were found.
    """

    def __init__(self, recorder: Recorder, model: nn.Module, *, live: bool) -> None:
        self._recorder = recorder
        self._model: nn.Module | None = model
        self._parameters = list(model.parameters())
        self._copy = ModelCopy(recorder, model)
        self._live = live
        self._announced = recorder.run.door not in LOOPS
        self._thread = get_ident()
        self._window: CountWindow | None = None
        self._training: TrainingFilter | None = None
        self._left: list[CountWindow] = []
        self._before = 0
        self._first = recorder.run.step
        self.work = ShapedWork(recorder.reader, trained=self.trained, on_change=self.wake)
        """Known FLOPs of the fit, by batch shape."""
        self._schedule = CountSchedule(self.work)
        self._spans = 0
        self._closed = False
        self._began = recorder.clock()
        self._usual_until: float | None = None
        """Time at which the counted step would have ended without the count, or None if this time is unknown."""
        self._next_after = 0  # number of steps after which a count or an outline is due
        self._examples: dict[ShapeKey, Example] = {}
        """Batches whose shapes have no known FLOPs yet."""
        self.work.unknowns.counting = "the fit ended before a step was counted"
        self._records = CountRecords(recorder, self.work)
        self._looks = Outlines(recorder, self.work)

    def trained(self) -> tuple[bool, ...]:
        """Return `requires_grad` of each parameter of the model."""
        return tuple(map(_trains, self._parameters))

    def wake(self) -> None:
        self._next_after = 0
        self._recorder.observers.look_ahead()

    @property
    @override
    def due(self) -> int:
        busy = self._window is not None or self._left or self._looks.training is not None
        return 0 if busy else self._first + self._next_after

    @override
    def step_ended(self, step: int) -> None:
        self._schedule.steps = step - self._first
        self._records.note_apart(self._looks.training or self._training)
        window = self._window
        if window is not None and self._training is not None:
            there = window.counter.pushed
            self._shut(window)
            if self._usual_until is not None:
                self._schedule.took(self._recorder.clock() - self._usual_until)
            self._window = None
            self._put_down(window.counter, self._training, step, whole=there and not window.counter.inert)
        self._looks.end(step)

    @override
    def step_began(self) -> None:
        if self._left:
            for window in self._left:
                window.close()
            self._left = [one for one in self._left if one.left_behind]
        self._schedule.steps = self._recorder.step - self._first
        if self._schedule.steps < self._next_after:
            return
        self._look_at_clock()
        self._records.check_peak()
        if self.work.varies:
            pass
        elif not self._counts:
            self._work_out()
        elif self._schedule.wanted(self._recorder.step):
            self._open()
        elif self._examples and self._schedule.affordable():
            self._await()
        if self._live and (self._schedule.done or self._window is not None) and not self._spans:
            self._looks.begin(
                self._schedule.steps, self._training if self._window is not None else None, self._announced
            )
        self._next_after = self._next()

    @override
    def loader_left(self, *, exhausted: bool) -> None:
        """Drop the outline. If the loop left its loader early, remove the FLOP counter from the thread.

        The counter is removed now, because training may be over, and only the training thread can remove its own
        counter.
        """
        self._looks.drop()
        if self._window is not None and not exhausted:
            self._window.step_aside()

    def builds_graph(self) -> None:
        """Record one more forward when the program calls `grad` with `create_graph`, as for a gradient penalty."""
        if not (self._spans or in_backward()) and get_ident() == self._thread:
            for mark in ONE_MORE_FORWARD:
                self._recorder.enter(mark)

    @override
    def span_began(self, kind: str, step: int) -> None:
        self._looks.drop()
        self._spans += 1
        self._usual_until = None
        if self._window is not None:
            self._window.close()

    @override
    def span_ended(self) -> None:
        self._spans = max(0, self._spans - 1)
        if self._window is not None and not self._spans:
            self._window.open()

    @override
    def shape_seen(self, shape: ShapeKey, tensors: Mapping[str, Any]) -> None:
        if self._closed or self.work.varies or not self.work.wants(shape):
            return
        self._schedule.steps = self._recorder.step - self._first
        self._look_at_clock()
        here = self._window is None and not self._spans and get_ident() == self._thread
        if here and self._schedule.done and self._counts and self._schedule.affordable():
            self._open(new=True)
        self._examples[shape] = example_of(tensors)
        if len(self._examples) > MOST_OWED:
            del self._examples[next(iter(self._examples))]
        self._next_after = min(self._next_after, self._next())
        self._recorder.observers.look_ahead()

    @override
    def closed(self) -> None:
        self.work.close()
        self._closed, self._model = True, None
        self._copy.close()
        self._looks.drop()
        self._recorder.tape.unfollow()
        self._parameters = []
        with ExitStack() as windows:  # an interrupt in one `close` must not skip the next
            for window in (*self._left, self._window):
                if window is not None:
                    windows.callback(window.close)
        self._window = None

    def _look_at_clock(self) -> None:
        """Set how much time the counting of FLOPs may take.

        A job of several ranks has no time budget, because ranks of different speed would choose different steps to
        count.
        """
        if alone(self._recorder.run):
            self._schedule.elapsed_seconds = self._recorder.clock() - self._began

    def _next(self) -> int:
        """Return the number of completed steps after which the next count or outline is due."""
        step, looks = self._recorder.step, self._looks.after
        return self._schedule.next(step, examples=self._examples, look_after=looks, live=self._live)

    @property
    def _counts(self) -> bool:
        """True if a counter may watch the operations of a step. It changes none of them, whatever this rank decides."""
        able = RUNS_UNDER_MODES or not compiles()
        return self._live and able and not device.of(self._recorder.device).captures

    def _await(self) -> None:
        """For each waiting batch shape, make the batch reader treat the next batch of this shape as new."""
        for shape in self._examples:
            self._recorder.reader.forget(shape)
        self._examples.clear()

    def _open(self, *, new: bool = False) -> None:
        self._looks.drop()
        self._await()
        self._before = len(self._recorder.engine.batches)
        self._recorder.reader.note()
        self._recorder.engine.exclude(RECOUNTED if self._schedule.done else COUNTED)
        self._schedule.spend(new=new)
        now = self._recorder.clock()
        step_seconds = (now - self._began) / max(self._schedule.steps, 1)
        self._usual_until = now + step_seconds
        observers = self._recorder.observers
        follow = weakly(observers.operation) if observers.following else None  # a counter must keep no fit alive
        self._training = TrainingFilter(self._recorder.tape, announced=self._announced)
        counter = FlopCounter(self._training, follow, self._model, self._spent_by(now + MOST_STEPS * step_seconds))
        window = CountWindow(max(PATIENCE_SECONDS, PATIENCE_STEPS * step_seconds), counter)
        self._window = window
        WATCHDOG.watch(window)
        if not self._spans:
            self._window.open()

    def _spent_by(self, end: float) -> Callable[[int], bool]:
        """Return a function that is True once a count has cost enough."""
        clock, end = self._recorder.clock, max(end, self._recorder.clock() + LEAST_SECONDS)
        timed = alone(self._recorder.run)
        return lambda operations: operations > MOST_OPERATIONS or (timed and clock() > end)

    def _shut(self, window: CountWindow) -> None:
        window.close()
        self._recorder.tape.unfollow()
        self._left = [one for one in (*self._left, window) if one.left_behind]
        for one in self._left:
            one.close()

    def _put_down(self, counter: FlopCounter, training: TrainingFilter, step: int, *, whole: bool) -> None:
        """Store the FLOPs of a counted step, unless its count is useless.

        The count of a step is useless in five cases:

        - An exception was raised in a step of several batches, and training continued.
        - A part of the step ran before the count began, as in a loop that calls no watched function.
        - The step trained on no new batch.
        - The count has no matrix products. A count without matrix products is useful only for a whole step without a
          backward. An earlier count must also have had matrix products.
        - The step had forwards or backwards that the trainer did not announce. If there is no earlier count, later
          counts include unannounced forwards and backwards.

        The first count ends with a step that has a backward. The first count also ends when the budget of counts is
        used up.
        """
        self._recorder.look_up(counter.observed.lookups)
        work = self.work
        found = CountedStep(counter, training.stage_tracker.calls, self._recorder.engine.batches[self._before :])
        total, batches, calls = found.total, found.batches, found.calls
        nothing_announced = not calls.forwards and work.rating is None
        unannounced = self._announced and (nothing_announced or (training.unannounced and not calls.backwards))
        if unannounced and work.rating is None:
            self._announced = False
            self._records.apart.clear()  # calls like these are counted from now on
        part = any(training.stage_tracker.earlier) and not self._before
        none = not total.model_flops and (calls.backwards or not whole or work.rating is None)
        if part or unannounced or none or not batches or (counter.interrupted and len(batches) > 1):
            if not batches or (none and calls.backwards and work.rating is None):
                self._schedule.spend_more()
            self._schedule.done = self._schedule.done or not self._schedule.affordable()
            if not part:
                work.unknowns.counting = work.unknowns.counting and why_useless(counter, total)
            return
        self._schedule.done = self._schedule.done or "backward" in total.by_phase or not self._schedule.affordable()
        if self._model is not None:
            self._parameters = list(self._model.parameters())
            work.look(step)
        copied = self._copy.check(found, self._examples)
        self._live = self._live and copied is None and REST not in found.missing  # a recount would differ
        if copied is not None:
            work.learn([batches[0].shape], [copied.work()], source=COPY)
        elif found.missing and work.covers([batch.shape for batch in batches], total, calls):
            return
        else:
            work.learn([batch.shape for batch in batches], found.passes, calls, step=step)
        if not total.model_flops:
            return
        work.unknowns.counting = None
        self._examples = {shape: example for shape, example in self._examples.items() if not work.knows(shape)}
        tokens = plus(*[self._recorder.reader.with_tokens(batch).tokens for batch in batches])
        if copied is not None:
            self._records.write(counted(copied, step, tokens, source=COPY))
        else:
            whole = found.whole and not self._before
            self._records.write(counted(counter, step, tokens, whole_step=whole, total=total, missing=found.missing))

    def _work_out(self) -> None:
        """Compute the FLOPs of a waiting batch shape without running a training step.

        A copy of the model runs on fake tensors. If the copy can't run, a closed form is used.
        """
        work = self.work
        examples = {shape: example for shape, example in self._examples.items() if work.wants(shape)}
        if not self._schedule.done:
            self._schedule.done = True
            self._recorder.engine.exclude(COUNTED)
        elif not examples or not self._schedule.affordable():
            self._examples = examples
            return
        else:
            self._recorder.engine.exclude(RECOUNTED)
        if examples and self._model is not None:
            shape, example = examples.popitem()
            self._schedule.counts += 1
            self._estimate(shape, example)
        self._examples = examples

    def _estimate(self, shape: ShapeKey, example: Example) -> None:
        work, (rows, length) = self.work, extent(shape)
        counter = self._copy.count(example)
        made = None
        if counter is not None:
            made = counted(counter, self._recorder.step, rows * length, source=COPY), counter.work()
        if made is None:
            work.unknowns.counting = "a fake-tensor copy of the model can't be run, and there is no closed form for it"
            found = self._copy.closed_form(example)
            if found is None:
                return
            made = estimated(found, self._recorder.step), found
        record, total = made
        if not total.model_flops:
            return
        work.learn([shape], [total], source=record.source)
        work.unknowns.counting = None
        self._records.write(record)


def alone(run: Run) -> bool:
    """Return True if the time of a process may decide which steps are counted, and for how long."""
    return run.world_size == 1
