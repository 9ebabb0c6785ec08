"""The base class of all observers of a fit, and the list of a fit's observers."""

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar

from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.engine.steps import NEVER, Columns, Step
from perf_callbacks.kernel.records.fit_records import Finding, Gc, Record, Summary

Signals = Mapping[str, Sequence[float | None]]
"""Signals of some steps. For each name a column of seconds, one per step; None for an unknown time."""


P = ParamSpec("P")
T = TypeVar("T")


class Observer:
    """Receives the events of a fit. Override the events of interest: the rest cost nothing.

    An error that an observer raises ends the measuring of the fit, never the training.
    """

    @property
    def due(self) -> int:
        """First step, by the trainer's count, at whose end `step_ended` and `step_began` are called."""
        return NEVER

    @property
    def watching(self) -> bool:
        """Return True if the observer wants to see measured steps now."""
        return False

    @property
    def following(self) -> bool:
        """Return True if the observer wants to receive operations now."""
        return False

    @property
    def asks(self) -> Mapping[str, int]:
        """Values that this rank proposes to all ranks, by name. All ranks adopt the least proposal: see `agreed`."""
        return {}

    def step_ended(self, step: int) -> None:
        """Handle the end of an optimizer step. Time spent here is still part of the step."""

    def step_began(self) -> None:
        """Handle the beginning of the next step."""

    def span_began(self, kind: str, step: int) -> None:
        """Handle the beginning of an evaluation, a checkpoint or the like after step `step`. Spans nest."""

    def span_ended(self) -> None:
        """Handle the end of the innermost span. Time spent here is still part of the span."""

    def loader_left(self, *, exhausted: bool) -> None:
        """Handle the exit of the loop from its loader, maybe within a step. This may be the last event of training."""

    def epoch_ended(self) -> None:
        """Handle the end of a trainer's epoch. A plain loop calls `loader_left` instead."""

    def steps_measured(self, steps: Sequence[Step], pauses: Sequence[Gc]) -> None:
        """Handle measured steps, some time after their end. `pauses`, the collections of a step, may arrive earlier."""

    def marks_read(self, pairs: Sequence[Any], numbers: Sequence[int]) -> None:
        """Handle marks and times, in pairs, before the tape is read. `numbers` are the steps that end in `pairs`.

        Called by the thread that reads the tape, which may be a loader's thread.
        """

    def agreed(self, least: Mapping[str, int], step: int) -> None:
        """Adopt `least`: by name, the least value that a rank proposed. All ranks do so at the end of `step`."""

    def window_part(self, steps: Columns) -> Signals:  # noqa: ARG002 for observers that have signals
        """Return signals of the steps of a window. This rank sends them to rank 0, with its part of the window."""
        return {}

    def resources(self) -> Mapping[str, float]:
        """Return the use of the machine by this rank since the last call, for a window: see `RESOURCES`."""
        return {}

    def operation(self, function: Any, output: Any, backward: int) -> None:
        """Handle an operation of a counted step.

        `backward` is the number of the running backward, or 0 if none runs.
        """

    def record_written(self, record: Record) -> None:
        """Handle a record that any thread has written."""

    def happened(self, kind: str, details: Mapping[str, Any]) -> None:
        """Handle an event that a person may want to hear of at once, such as "stall". Any thread may call this.

        `details` has a sentence `text`, and values for JSON.
        """

    def exception_raised(self, error: BaseException) -> None:
        """Handle the exception that ends the fit. Its frames, and the tensors in these, still exist."""

    def before_summary(self) -> None:
        """Wait a moment for messages of other ranks. Called after the fit is closed and before its summary is made."""

    def metrics(self, kind: str) -> Mapping[str, float]:  # noqa: ARG002 for observers that distinguish the two kinds
        """Return metrics, by their names in `METRICS`, for a "row" or for the "whole" fit. Called once per row."""
        return {}

    def summary(self) -> Mapping[str, Any]:
        """Return fields of `Summary`: the part of a feature."""
        return {}

    def facts(self) -> Mapping[str, Any]:
        """Return fields of `Facts`, by which the rules of advice decide."""
        return {}

    def findings(self, summary: Summary | None) -> tuple[Finding, ...]:  # noqa: ARG002 as above
        """Return findings, from the summary so far or, without a summary, from the facts alone."""
        return ()

    def shape_seen(self, shape: ShapeKey, tensors: Mapping[str, Any]) -> None:
        """Handle a batch of a new shape before its use. Evaluation has batches, too."""

    def closed(self) -> None:
        """Undo all changes, because the fit is over. Idempotent."""


EVENTS = tuple([name for name, member in vars(Observer).items() if isinstance(member, FunctionType)])
"""Names of the methods that an observer may override."""


def _to_each(
    event: Callable[Concatenate[Observer, P], object], *, look_ahead: bool = False
) -> Callable[Concatenate["Observers", P], None]:
    """Return a method that calls `event` of all observers that override it."""
    name = event.__name__

    def announce(self: "Observers", /, *args: P.args, **kwargs: P.kwargs) -> None:
        for observer in self.overriding[name]:
            getattr(observer, name)(*args, **kwargs)
        if look_ahead:
            self.look_ahead()

    return announce


def _merged(
    event: Callable[Concatenate[Observer, P], Mapping[str, T]],
) -> Callable[Concatenate["Observers", P], dict[str, T]]:
    """Return a method that merges the answers of the observers which override `event`."""
    name = event.__name__

    def merge(self: "Observers", /, *args: P.args, **kwargs: P.kwargs) -> dict[str, T]:
        merged: dict[str, T] = {}
        for observer in self.overriding[name]:
            merged |= getattr(observer, name)(*args, **kwargs)
        return merged

    return merge


class Observers:
    """The observers of one fit. Each event reaches only the observers that override it, in the order of joining."""

    def __init__(self) -> None:
        self._all: list[Observer] = []
        self.overriding: dict[str, list[Observer]] = {event: [] for event in EVENTS}
        """Observers that override an event, by the name of the event."""
        self.due = NEVER
        """First step at whose end an observer is due, or that `plan` or `hurry` requested."""
        self._planned = NEVER
        self._hurried = False

    def add(self, observer: Observer) -> None:
        """Add an observer, which receives the events from now on."""
        self._all.append(observer)
        for event, hearing in self.overriding.items():
            if getattr(type(observer), event) is not getattr(Observer, event):
                hearing.append(observer)
        self.look_ahead()

    def look_ahead(self) -> None:
        """Compute when the next observer is due. An observer whose `due` changes between events calls this."""
        self.due = 0 if self._hurried else min([self._planned, *[observer.due for observer in self._all]])

    def plan(self, step: int) -> None:
        """Request full handling of the end of `step`, not just a mark."""
        self._planned = step
        self.look_ahead()

    def hurry(self) -> None:
        """Request full handling of the end of each step from now on, not just a mark."""
        self._hurried, self.due = True, 0

    @property
    def watching(self) -> bool:
        """Return True if an observer wants to see measured steps."""
        return any([observer.watching for observer in self._all])

    @property
    def following(self) -> bool:
        """Return True if an observer wants to receive operations."""
        return any([observer.following for observer in self._all])

    @property
    def asks(self) -> dict[str, int]:
        """Values that the observers of this rank propose to all ranks, by name."""
        return {name: least for observer in self._all for name, least in observer.asks.items()}

    def step_ended(self, step: int) -> None:
        """Announce the end of a step to the observers that are due. `step_began` then computes the next due step."""
        for observer in self.overriding["step_ended"]:
            if step >= observer.due:
                observer.step_ended(step)

    step_began = _to_each(Observer.step_began, look_ahead=True)
    span_began = _to_each(Observer.span_began, look_ahead=True)
    span_ended = _to_each(Observer.span_ended, look_ahead=True)
    loader_left = _to_each(Observer.loader_left)
    epoch_ended = _to_each(Observer.epoch_ended)
    marks_read = _to_each(Observer.marks_read)
    agreed = _to_each(Observer.agreed, look_ahead=True)
    operation = _to_each(Observer.operation)
    record_written = _to_each(Observer.record_written)
    happened = _to_each(Observer.happened)
    exception_raised = _to_each(Observer.exception_raised)
    before_summary = _to_each(Observer.before_summary)
    shape_seen = _to_each(Observer.shape_seen)

    window_part = _merged(Observer.window_part)
    resources = _merged(Observer.resources)
    metrics = _merged(Observer.metrics)
    summary = _merged(Observer.summary)
    facts = _merged(Observer.facts)

    def steps_measured(self, steps: Sequence[Step], pauses: Sequence[Gc]) -> None:
        """Show measured steps to the observers that are watching."""
        for observer in self.overriding["steps_measured"]:
            if observer.watching:
                observer.steps_measured(steps, pauses)
        self.look_ahead()

    def findings(self, summary: Summary | None) -> tuple[Finding, ...]:
        """Return the findings of all observers."""
        return tuple([found for observer in self.overriding["findings"] for found in observer.findings(summary)])
