"""The base class of all observers of a fit, and the list of a fit's observers."""

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar

from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.engine.steps import NEVER, Columns, Step
from perf_callbacks.kernel.records.fit_records import Finding, Record, Summary

Signals = Mapping[str, Sequence[float | None]]
"""Seconds of some steps, by name of the signal. None: unknown."""


P = ParamSpec("P")
T = TypeVar("T")


class Observer:
    """Receives the events of a fit; those you don't override cost nothing. An error ends only measuring."""

    @property
    def due(self) -> int:
        """The step at whose end the engine calls `step_ended` and `step_began` next."""
        return NEVER

    @property
    def watching(self) -> bool:
        return False

    @property
    def following(self) -> bool:
        return False

    @property
    def proposals(self) -> Mapping[str, int]:
        """Values that this rank proposes to all ranks, which use the smallest: see `adopted`."""
        return {}

    def step_ended(self, step: int) -> None:
        """The time of this call is still part of the step."""

    def step_began(self) -> None: ...

    def span_began(self, kind: str, step: int) -> None:
        """A span, such as an evaluation, begins after step `step`. Spans may be nested."""

    def span_ended(self) -> None:
        """The innermost span ends. The time of this call is still part of it."""

    def loader_left(self, *, exhausted: bool) -> None:
        """The loop stops reading from its data loader: perhaps in the middle of a step, perhaps as the last event."""

    def epoch_ended(self) -> None:
        """A trainer's epoch ended. A plain loop calls `loader_left` instead."""

    def steps_measured(self, steps: Sequence[Step]) -> None:
        """Handle steps whose times have become known. The steps may have ended long ago."""

    def marks_read(self, pairs: Sequence[Any], numbers: Sequence[int]) -> None:
        """Read marks, each followed by its time, and the steps that end in them; perhaps in a loader's thread."""

    def adopted(self, least: Mapping[str, int], step: int) -> None:
        """Use the smallest proposals, by name, from the end of step `step`. All ranks begin at the same step."""

    def window_part(self, steps: Columns) -> Signals:  # noqa: ARG002 for observers that have signals
        """Return the times of the steps, which this rank sends to rank 0 for the comparison of the ranks."""
        return {}

    def resources(self) -> Mapping[str, float]:
        """Return this rank's use of CPU, GPU and memory since the last call, under the names in `RESOURCES`."""
        return {}

    def operation(self, function: Any, output: Any, backward: int) -> None:
        """A torch operation ran in a step whose FLOPs are counted, in the backward of this number (0: in none)."""

    def record_written(self, record: Record) -> None:
        """Any thread may call this, just after the record was written."""

    def happened(self, kind: str, details: Mapping[str, Any]) -> None:
        """Any thread may call this, such as for "stall". `details` are JSON, with a sentence under `text`."""

    def exception_raised(self, error: BaseException) -> None:
        """The exception ends the fit. Its traceback still keeps tensors alive."""

    def before_summary(self) -> None:
        """Wait a moment for results that belong in the summary. Training is already over."""

    def metrics(self, kind: str) -> Mapping[str, float]:  # noqa: ARG002 for observers that distinguish the two kinds
        """Return metrics by their names in `METRICS`: once per row with "row", and with "whole" for the whole fit."""
        return {}

    def summary(self) -> Mapping[str, Any]:
        return {}

    def facts(self) -> Mapping[str, Any]:
        """Return the fields of `Facts` that this observer fills, for the rules that give advice."""
        return {}

    def findings(self, summary: Summary | None) -> tuple[Finding, ...]:  # noqa: ARG002 as above
        """`summary` covers the fit so far. None: decide from the facts alone."""
        return ()

    def suspended(self, seconds: float) -> bool:  # noqa: ARG002 as above
        """True: the process was suspended in a step of so many seconds, which has just ended."""
        return False

    def shape_seen(self, shape: ShapeKey, tensors: Mapping[str, Any]) -> None:
        """The model is about to get a batch of a new shape, also in an evaluation."""

    def closed(self) -> None: ...


EVENTS = tuple([name for name, member in vars(Observer).items() if isinstance(member, FunctionType)])


def _to_each(
    event: Callable[Concatenate[Observer, P], object], *, updates_due: bool = False
) -> Callable[Concatenate["Observers", P], None]:
    name = event.__name__

    def announce(self: "Observers", /, *args: P.args, **kwargs: P.kwargs) -> None:
        for observer in self.overriding[name]:
            getattr(observer, name)(*args, **kwargs)
        if updates_due:
            self.update_due()

    return announce


def _merged(
    event: Callable[Concatenate[Observer, P], Mapping[str, T]],
) -> Callable[Concatenate["Observers", P], dict[str, T]]:
    name = event.__name__

    def merge(self: "Observers", /, *args: P.args, **kwargs: P.kwargs) -> dict[str, T]:
        merged: dict[str, T] = {}
        for observer in self.overriding[name]:
            merged |= getattr(observer, name)(*args, **kwargs)
        return merged

    return merge


class Observers:
    """The observers of one fit, in the order of `add`. An event reaches only those that override its method."""

    def __init__(self) -> None:
        self._all: list[Observer] = []
        self.overriding: dict[str, list[Observer]] = {event: [] for event in EVENTS}
        self.due = NEVER
        """The smallest `due` of all observers, or less: see `set_due` and `always_due`."""
        self._planned = NEVER
        self._always_due = False

    def add(self, observer: Observer) -> None:
        self._all.append(observer)
        for event, hearing in self.overriding.items():
            if getattr(type(observer), event) is not getattr(Observer, event):
                hearing.append(observer)
        self.update_due()

    def update_due(self) -> None:
        """An observer calls this if its `due` changes between two events."""
        self.due = 0 if self._always_due else min([self._planned, *[observer.due for observer in self._all]])

    def set_due(self, step: int) -> None:
        """Make sure that `due` is at most `step`. Until step `due`, the end of a step only writes a mark."""
        self._planned = step
        self.update_due()

    def always_due(self) -> None:
        self._always_due, self.due = True, 0

    @property
    def watching(self) -> bool:
        return any([observer.watching for observer in self._all])

    @property
    def following(self) -> bool:
        return any([observer.following for observer in self._all])

    @property
    def proposals(self) -> dict[str, int]:
        return {name: least for observer in self._all for name, least in observer.proposals.items()}

    def step_ended(self, step: int) -> None:
        """Only observers that are due are called. `step_began` computes the next `due`."""
        for observer in self.overriding["step_ended"]:
            if step >= observer.due:
                observer.step_ended(step)

    step_began = _to_each(Observer.step_began, updates_due=True)
    span_began = _to_each(Observer.span_began, updates_due=True)
    span_ended = _to_each(Observer.span_ended, updates_due=True)
    loader_left = _to_each(Observer.loader_left)
    epoch_ended = _to_each(Observer.epoch_ended)
    marks_read = _to_each(Observer.marks_read)
    adopted = _to_each(Observer.adopted, updates_due=True)
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

    def steps_measured(self, steps: Sequence[Step]) -> None:
        for observer in self.overriding["steps_measured"]:
            if observer.watching:
                observer.steps_measured(steps)
        self.update_due()

    def suspended(self, seconds: float) -> bool:
        return any([observer.suspended(seconds) for observer in self.overriding["suspended"]])

    def findings(self, summary: Summary | None) -> tuple[Finding, ...]:
        return tuple([finding for observer in self.overriding["findings"] for finding in observer.findings(summary)])
