"""Count the FLOPs of a fit's second optimizer step, of new batch shapes or model calls, and of some steps again."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from threading import get_ident
from typing import Any

from torch import nn
from typing_extensions import override

from perf_callbacks.flops.by_shape.shape_counts import SAME, extent
from perf_callbacks.flops.by_shape.shaped_work import COPY, ShapedWork
from perf_callbacks.flops.count_records import CountRecords, counted, estimated
from perf_callbacks.flops.count_schedule import CountSchedule
from perf_callbacks.flops.counted_step import REST, CountedStep, why_useless
from perf_callbacks.flops.counting.count_window import CountWindow
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.counting.phases import in_backward
from perf_callbacks.flops.fingerprint import WorkFingerprints
from perf_callbacks.flops.model_copy import ModelCopy
from perf_callbacks.flops.offline import Example, example_of
from perf_callbacks.flops.training_filter import TrainingFilter
from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.clock import PATIENCE_SECONDS, PATIENCE_STEPS
from perf_callbacks.kernel.engine.marks import ONE_MORE_FORWARD
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.steps import COUNTED, RECOUNTED, plus
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.process.backward import BACKWARDS, Listener
from perf_callbacks.kernel.process.compiler import RUNS_UNDER_MODES, compiles
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.fit_records import Run
from perf_callbacks.kernel.weak_calls import weakly

MOST_OWED = 8  # batch shapes that wait for a count

MOST_OPERATIONS = 50_000
"""A count ends after so many, the same on all ranks. A step of 80 layers has some 10,000."""

MOST_STEPS = 3
LEAST_SECONDS = 0.5
"""With one rank, a count also ends after three times the first step, but not within half a second: noise."""

LOOPS = ("loop", "accelerate")  # a plain loop may run a forward without calling a watched function

_trains = attrgetter("requires_grad")


def begin(recorder: Recorder, context: FitContext) -> "Counting | None":
    how = recorder.run.config["flops"]
    if context.model is None or how == "off":
        return None
    counting = Counting(recorder, context.model, live=how == "count")
    if recorder.run.door not in LOOPS:  # a plain loop has its own listener for gradients
        recorder.patches.add(partial(BACKWARDS.release, counting))
        BACKWARDS.join(counting)
    recorder.attempt(lambda begun: begun.engine.use(counting.work))  # last: an error takes back all changes so far
    return counting


class Counting(Observer, Listener):
    """Counts the FLOPs of some steps of a fit, and writes a `flops` record for each count.

    Metrics leave out counted steps. The first step, with initialization and compilation, and evaluation are never
    counted. Compiled code runs as ever, so its count is a lower bound, replaced by that of a copy of the model if it
    can run. The record's `source` says which.
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
        self._schedule = CountSchedule(self.work)
        self._spans = 0
        self._closed = False
        self._began = recorder.clock()
        self._usual_until: float | None = None  # when the counted step would have ended without the count
        self._next_after = 0  # number of steps after which a count or a fingerprint is due
        self._examples: dict[ShapeKey, Example] = {}  # batches whose shapes have no known FLOPs yet
        self.work.unknowns.counting = "the fit ended before a step was counted"
        self._records = CountRecords(recorder, self.work)
        self._looks = WorkFingerprints(recorder, self.work)

    def trained(self) -> tuple[bool, ...]:
        return tuple(map(_trains, self._parameters))

    def wake(self) -> None:
        self._next_after = 0
        self._recorder.observers.update_due()

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
            self._store_count(window.counter, self._training, step, whole=there and not window.counter.inert)
        self._looks.end(step)

    @override
    def step_began(self) -> None:
        if self._left:
            for window in self._left:
                window.close()
            self._left = [window for window in self._left if window.left_behind]
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
        """Only the training thread can remove its counter, and training may be over after an early exit."""
        self._looks.drop()
        if self._window is not None and not exhausted:
            self._window.step_aside()

    def builds_graph(self) -> None:
        """Called for `grad` with `create_graph`, as for a gradient penalty."""
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
        self._recorder.observers.update_due()

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
        """Several ranks have no time budget: at different speeds they would count different steps."""
        if alone(self._recorder.run):
            self._schedule.elapsed_seconds = self._recorder.clock() - self._began

    def _next(self) -> int:
        step, looks = self._recorder.step, self._looks.after
        return self._schedule.next(step, examples=self._examples, look_after=looks, live=self._live)

    @property
    def _counts(self) -> bool:
        """True if a counter may watch a step: it changes no operation, whatever this rank decides."""
        able = RUNS_UNDER_MODES or not compiles()
        return self._live and able and not device.device_at(self._recorder.device).captures

    def _await(self) -> None:
        """The next batch of each waiting shape is new to the batch reader."""
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
        clock, end = self._recorder.clock, max(end, self._recorder.clock() + LEAST_SECONDS)
        timed = alone(self._recorder.run)
        return lambda operations: operations > MOST_OPERATIONS or (timed and clock() > end)

    def _shut(self, window: CountWindow) -> None:
        window.close()
        self._recorder.tape.unfollow()
        self._left = [left for left in (*self._left, window) if left.left_behind]
        for left in self._left:
            left.close()

    def _store_count(self, counter: FlopCounter, training: TrainingFilter, step: int, *, whole: bool) -> None:
        """Store the FLOPs of a counted step, unless its count is useless.

        It is if an exception was raised in a step of several batches, and training continued; a part ran before the
        count began, as in a loop that calls no watched function; the step trained on no new batch; there are no matrix
        products, except in a whole step without a backward after an earlier count with some; or the trainer did not
        announce forwards or backwards, which later counts include if there is no earlier one. The first count ends with
        a step that has a backward, or when the budget of counts is used up.
        """
        self._recorder.look_up(counter.observed.lookups)
        work = self.work
        counted_step = CountedStep(counter, training.stage_tracker.calls, self._recorder.engine.batches[self._before :])
        total, batches, calls = counted_step.total, counted_step.batches, counted_step.calls
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
        copied = self._copy.check(counted_step, self._examples)
        self._live = self._live and copied is None and REST not in counted_step.missing  # a recount would differ
        if copied is not None:
            work.learn([batches[0].shape], [copied.work()], source=COPY)
        elif self._saw_less(counted_step):
            return
        else:
            work.learn([batch.shape for batch in batches], counted_step.passes, calls, step=step)
        if not total.model_flops:
            return
        work.unknowns.counting = None
        self._examples = {shape: example for shape, example in self._examples.items() if not work.knows(shape)}
        tokens = plus(*[self._recorder.reader.with_tokens(batch).tokens for batch in batches])
        if copied is not None:
            self._records.write(counted(copied, step, tokens, source=COPY))
        else:
            whole = counted_step.whole and not self._before
            self._records.write(
                counted(counter, step, tokens, whole_step=whole, total=total, missing=counted_step.missing)
            )

    def _work_out(self) -> None:
        """Compute a waiting shape's FLOPs on fake tensors or by a closed form, without a training step."""
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
            closed_form = self._copy.closed_form(example)
            if closed_form is None:
                return
            made = estimated(closed_form, self._recorder.step), closed_form
        record, total = made
        if not total.model_flops:
            return
        work.learn([shape], [total], source=record.source)
        work.unknowns.counting = None
        self._records.write(record)

    def _saw_less(self, counted_step: CountedStep) -> bool:
        """Return True if an earlier count saw more. An incomplete count that saw as much as a complete one is one."""
        shapes = [batch.shape for batch in counted_step.batches]
        share = self.work.share(shapes, counted_step.total, counted_step.calls) if counted_step.missing else None
        complete = self.work.rating is not None and not self.work.rating.count.lower_bound
        if share is not None and abs(share - 1) <= SAME and complete:
            counted_step.missing.clear()
        return share is not None and share < 1 - SAME


def alone(run: Run) -> bool:
    """Return True if a process's time may decide which steps are counted, and for how long."""
    return run.world_size == 1
