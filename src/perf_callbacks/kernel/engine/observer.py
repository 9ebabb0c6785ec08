"""The base class of everything that hears of a fit, and the list of those that do."""

from collections.abc import Mapping, Sequence
from typing import Any

from perf_callbacks.kernel.batches.plain_values import ShapeKey
from perf_callbacks.kernel.engine.steps import NEVER, Columns, Step
from perf_callbacks.kernel.records.fit_records import Finding, Gc, Record, Summary

Signals = Mapping[str, Sequence[float | None]]
"""Signals of some steps: by name, a column of seconds as long as the steps, with None for an unknown time."""


class Observer:
    """Hears of a fit while it lasts. Override the events to hear of: the others cost nothing.

    An error that leaves an observer ends the measuring of the fit, never the training.
    """

    @property
    def due(self) -> int:
        """The step, by the trainer's count, from whose end on `step_ended` and `step_began` are called."""
        return NEVER

    @property
    def watching(self) -> bool:
        """Wants to see measured steps, for now."""
        return False

    @property
    def following(self) -> bool:
        """Wants to hear of operations, for now."""
        return False

    @property
    def asks(self) -> Mapping[str, int]:
        """Values that this rank asks all ranks for, by name."""
        return {}

    def step_ended(self, step: int) -> None:
        """An optimizer step is about to end; time spent here is still part of it."""

    def step_began(self) -> None:
        """The next step has begun."""

    def span_began(self, kind: str, step: int) -> None:
        """An evaluation, a checkpoint or the like has begun after that step. Spans nest."""

    def span_ended(self) -> None:
        """The innermost span is about to end."""

    def loader_left(self, *, exhausted: bool) -> None:
        """The loop leaves its loader, in the middle of a step or not: training may be over, and nobody may say so."""

    def epoch_ended(self) -> None:
        """A trainer has come to the end of an epoch. Of a loop, `loader_left` tells it."""

    def steps_measured(self, steps: Sequence[Step], pauses: Sequence[Gc]) -> None:
        """Steps were measured, some time after their end. Their collections are told of before."""

    def marks_read(self, pairs: Sequence[Any], numbers: Sequence[int]) -> None:
        """Marks and their times, in pairs, are about to be taken from the tape. The steps of these numbers end in them.

        Called by the thread that takes them, which may be that of a loader.
        """

    def agreed(self, least: Mapping[str, int], step: int) -> None:
        """The least that any rank asks for holds on all ranks from the end of that step on."""

    def window_part(self, steps: Columns) -> Signals:  # noqa: ARG002 for observers that have signals
        """Return signals of the steps of a window, which this rank sends to rank 0 with its part."""
        return {}

    def operation(self, function: Any, output: Any, backward: int) -> None:
        """An operation of a counted step has run, in the backward of that number or in none (0)."""

    def record_written(self, record: Record) -> None:
        """A record was written, in this thread or another."""

    def before_summary(self) -> None:
        """The fit is closed, and its summary is made next: wait a moment for the messages of other ranks."""

    def metrics(self, kind: str) -> Mapping[str, float]:  # noqa: ARG002 for observers that tell them apart
        """Return metrics, by name, for a "row" of the log or for the "whole" fit. Each row is asked for once."""
        return {}

    def summary(self) -> Mapping[str, Any]:
        """Return fields of `Summary`: the part of a feature."""
        return {}

    def facts(self) -> Mapping[str, Any]:
        """Return fields of `Facts`, by which the rules of advice decide."""
        return {}

    def findings(self, summary: Summary | None) -> tuple[Finding, ...]:  # noqa: ARG002 as above
        """Return findings by the summary so far; by the facts alone if there is none yet."""
        return ()

    def shape_seen(self, shape: ShapeKey, tensors: Mapping[str, Any]) -> None:
        """Handle a batch of a new shape, before it is used. Evaluation has batches, too."""

    def closed(self) -> None:
        """The fit is over: put everything back. Twice is once."""


EVENTS = (
    "step_ended",
    "step_began",
    "span_began",
    "span_ended",
    "loader_left",
    "epoch_ended",
    "steps_measured",
    "marks_read",
    "agreed",
    "window_part",
    "operation",
    "record_written",
    "before_summary",
    "metrics",
    "summary",
    "facts",
    "findings",
    "shape_seen",
)


class Observers:
    """The observers of one fit. Each event reaches only those that override it, in the order in which they joined."""

    def __init__(self) -> None:
        self._all: list[Observer] = []
        self._of: dict[str, list[Observer]] = {event: [] for event in EVENTS}
        self.due = NEVER
        """The step from whose end on somebody has something to do: an observer, or whoever planned or hurried."""
        self._planned = NEVER
        self._hurried = False

    def add(self, observer: Observer) -> None:
        """Let an observer hear of the fit from now on."""
        self._all.append(observer)
        for event, hearing in self._of.items():
            if getattr(type(observer), event) is not getattr(Observer, event):
                hearing.append(observer)
        self.look_ahead()

    def look_ahead(self) -> None:
        """Find out when the next observer is due. To be called by an observer that moves its `due` by itself."""
        self.due = 0 if self._hurried else min([self._planned, *[observer.due for observer in self._all]])

    def plan(self, step: int) -> None:
        """Let the end of that step, too, be more than a mark."""
        self._planned = step
        self.look_ahead()

    def hurry(self) -> None:
        """Let the end of each step from now on be more than a mark."""
        self._hurried, self.due = True, 0

    @property
    def watching(self) -> bool:
        """Some observer wants to see measured steps."""
        return any([observer.watching for observer in self._all])

    @property
    def following(self) -> bool:
        """Some observer wants to hear of operations."""
        return any([observer.following for observer in self._all])

    @property
    def asks(self) -> dict[str, int]:
        """Values that the observers of this rank ask all ranks for."""
        return {name: least for observer in self._all for name, least in observer.asks.items()}

    def step_ended(self, step: int) -> None:
        """Tell those that are due that a step is about to end. When the next one begins, it is planned who is due."""
        for observer in self._of["step_ended"]:
            if step >= observer.due:
                observer.step_ended(step)

    def step_began(self) -> None:
        """Tell that the next step has begun."""
        for observer in self._of["step_began"]:
            observer.step_began()
        self.look_ahead()

    def span_began(self, kind: str, step: int) -> None:
        """Tell that a span has begun."""
        for observer in self._of["span_began"]:
            observer.span_began(kind, step)
        self.look_ahead()

    def span_ended(self) -> None:
        """Tell that the innermost span is about to end."""
        for observer in self._of["span_ended"]:
            observer.span_ended()
        self.look_ahead()

    def loader_left(self, *, exhausted: bool) -> None:
        """Tell that the loop leaves its loader."""
        for observer in self._of["loader_left"]:
            observer.loader_left(exhausted=exhausted)

    def epoch_ended(self) -> None:
        """Tell that an epoch is over."""
        for observer in self._of["epoch_ended"]:
            observer.epoch_ended()

    def steps_measured(self, steps: Sequence[Step], pauses: Sequence[Gc]) -> None:
        """Tell of measured steps those that want to see them."""
        for observer in self._of["steps_measured"]:
            if observer.watching:
                observer.steps_measured(steps, pauses)
        self.look_ahead()

    @property
    def read_marks(self) -> bool:
        """Some observer reads marks."""
        return bool(self._of["marks_read"])

    def marks_read(self, pairs: Sequence[Any], numbers: Sequence[int]) -> None:
        """Show marks of the tape to the observers that read them."""
        for observer in self._of["marks_read"]:
            observer.marks_read(pairs, numbers)

    def agreed(self, least: Mapping[str, int], step: int) -> None:
        """Tell what holds on all ranks."""
        for observer in self._of["agreed"]:
            observer.agreed(least, step)
        self.look_ahead()

    @property
    def have_signals(self) -> bool:
        """Some observer makes signals of the steps of a window."""
        return bool(self._of["window_part"])

    def window_part(self, steps: Columns) -> dict[str, Sequence[float | None]]:
        """Return the signals that observers make of the steps of a window."""
        made = [observer.window_part(steps) for observer in self._of["window_part"]]
        return {name: column for signals in made for name, column in signals.items()}

    def operation(self, function: Any, output: Any, backward: int) -> None:
        """Pass on an operation of a counted step."""
        for observer in self._of["operation"]:
            observer.operation(function, output, backward)

    def record_written(self, record: Record) -> None:
        """Pass on a record that was written."""
        for observer in self._of["record_written"]:
            observer.record_written(record)

    def before_summary(self) -> None:
        """Let the observers wait for what their parts of the summary still lack."""
        for observer in self._of["before_summary"]:
            observer.before_summary()

    def metrics(self, kind: str) -> dict[str, float]:
        """Return the metrics of all observers for a "row" or for the "whole" fit."""
        return {name: value for observer in self._of["metrics"] for name, value in observer.metrics(kind).items()}

    def summary(self) -> dict[str, Any]:
        """Return the fields of `Summary` that observers contribute."""
        return {name: part for observer in self._of["summary"] for name, part in observer.summary().items()}

    def facts(self) -> dict[str, Any]:
        """Return the fields of `Facts` that observers contribute."""
        return {name: fact for observer in self._of["facts"] for name, fact in observer.facts().items()}

    def findings(self, summary: Summary | None) -> tuple[Finding, ...]:
        """Return the findings of all observers."""
        return tuple([found for observer in self._of["findings"] for found in observer.findings(summary)])

    def shape_seen(self, shape: ShapeKey, tensors: Mapping[str, Any]) -> None:
        """Hand a batch of a new shape to the observers."""
        for observer in self._of["shape_seen"]:
            observer.shape_seen(shape, tensors)
