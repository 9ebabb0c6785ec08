"""The base class of all observers of a fit, and the list of a fit's observers."""

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar

from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.engine.steps import NEVER, Columns, Step
from perf_callbacks.kernel.records.fit_records import Finding, Record, Summary

Signals = Mapping[str, Sequence[float | None]]
"""Times of some steps. Maps the name of a signal to its seconds in each step. None: unknown."""


P = ParamSpec("P")
T = TypeVar("T")


class Observer:
    """Base class of objects that receive the events of a fit. An event whose method you don't override costs nothing.

    If an observer raises an error, the measuring of the fit ends, but the training goes on.
    """

    @property
    def due(self) -> int:
        """Number of the step at whose end the engine calls `step_ended` and `step_began` next."""
        return NEVER

    @property
    def watching(self) -> bool:
        """Return True if the observer wants `steps_measured` to be called now."""
        return False

    @property
    def following(self) -> bool:
        """Return True if the observer wants `operation` to be called now."""
        return False

    @property
    def asks(self) -> Mapping[str, int]:
        """Values that this rank proposes to all ranks, each under its name.

        All ranks use the smallest proposal: see `agreed`.
        """
        return {}

    def step_ended(self, step: int) -> None:
        """Handle the end of an optimizer step. The time of this call is still part of the step."""

    def step_began(self) -> None:
        """Handle the beginning of the next step."""

    def span_began(self, kind: str, step: int) -> None:
        """Handle the beginning of a span, such as an evaluation, after step `step`. Spans may be nested."""

    def span_ended(self) -> None:
        """Handle the end of the innermost span. The time of this call is still part of the span."""

    def loader_left(self, *, exhausted: bool) -> None:
        """Handle the moment when the training loop stops reading from its data loader.

        The event can come in the middle of a step, and can be the final event of training.
        """

    def epoch_ended(self) -> None:
        """Handle the end of a trainer's epoch. In a plain loop, `loader_left` is called instead of `epoch_ended`."""

    def steps_measured(self, steps: Sequence[Step]) -> None:
        """Handle steps whose times have become known. The steps may have ended long ago."""

    def marks_read(self, pairs: Sequence[Any], numbers: Sequence[int]) -> None:
        """Handle the marks on the tape before the engine reads them.

        In `pairs`, each mark is followed by its time. `numbers` has the numbers of the steps that end in `pairs`. This
        method may run in a thread of a data loader.
        """

    def agreed(self, least: Mapping[str, int], step: int) -> None:
        """Begin to use the values in `least` at the end of step `step`. All ranks begin at the same step.

        For each name, `least` has the smallest value that a rank proposed.
        """

    def window_part(self, steps: Columns) -> Signals:  # noqa: ARG002 for observers that have signals
        """Return the times of the steps in `steps`. This rank sends the times to rank 0, which compares the ranks."""
        return {}

    def resources(self) -> Mapping[str, float]:
        """Return this rank's use of CPU, GPU and memory since the last call, under the names in `RESOURCES`."""
        return {}

    def operation(self, function: Any, output: Any, backward: int) -> None:
        """Handle a torch operation in a step whose FLOPs are counted.

        `backward` is the number of the backward that is running, or 0 if no backward is running.
        """

    def record_written(self, record: Record) -> None:
        """Handle a journal record that was just written. Any thread may call this method."""

    def happened(self, kind: str, details: Mapping[str, Any]) -> None:
        """Handle an event that a user may want to hear of at once, such as "stall". Any thread may call this method.

        `details` has a sentence under the key `text`, and more values that can be written as JSON.
        """

    def exception_raised(self, error: BaseException) -> None:
        """Handle the exception that ends the fit. The exception's traceback still keeps tensors alive."""

    def before_summary(self) -> None:
        """Wait a moment for results that belong in the summary. Training is already over."""

    def metrics(self, kind: str) -> Mapping[str, float]:  # noqa: ARG002 for observers that distinguish the two kinds
        """Return metrics under their names in `METRICS`. `kind` is "row", or "whole" for the whole fit.

        For the kind "row", the engine calls `metrics` once per row.
        """
        return {}

    def summary(self) -> Mapping[str, Any]:
        """Return the fields of `Summary` that this observer fills."""
        return {}

    def facts(self) -> Mapping[str, Any]:
        """Return the fields of `Facts` that this observer fills. The rules that give advice read these facts."""
        return {}

    def findings(self, summary: Summary | None) -> tuple[Finding, ...]:  # noqa: ARG002 as above
        """Return findings. `summary` covers the fit so far. If `summary` is None, decide from the facts alone."""
        return ()

    def suspended(self, seconds: float) -> bool:  # noqa: ARG002 as above
        """Return True if the process was suspended in a step of so many seconds, which has just ended."""
        return False

    def shape_seen(self, shape: ShapeKey, tensors: Mapping[str, Any]) -> None:
        """Handle a batch of a new shape, also in an evaluation, before the model gets the batch."""

    def closed(self) -> None:
        """Undo all changes that the observer made, because the fit is over. Further calls do nothing."""


EVENTS = tuple([name for name, member in vars(Observer).items() if isinstance(member, FunctionType)])
"""Names of the methods that an observer may override."""


def _to_each(
    event: Callable[Concatenate[Observer, P], object], *, look_ahead: bool = False
) -> Callable[Concatenate["Observers", P], None]:
    """Return a method that calls the method `event` of each observer that overrides `event`."""
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
    """Return a method that calls `event` of each observer that overrides `event`, and merges the results."""
    name = event.__name__

    def merge(self: "Observers", /, *args: P.args, **kwargs: P.kwargs) -> dict[str, T]:
        merged: dict[str, T] = {}
        for observer in self.overriding[name]:
            merged |= getattr(observer, name)(*args, **kwargs)
        return merged

    return merge


class Observers:
    """The observers of one fit, in the order in which they were added.

    An event reaches only the observers that override its method.
    """

    def __init__(self) -> None:
        self._all: list[Observer] = []
        self.overriding: dict[str, list[Observer]] = {event: [] for event in EVENTS}
        """Maps the name of each event to the observers that override its method."""
        self.due = NEVER
        """Smallest `due` of all observers. `plan` and `hurry` may choose a smaller number."""
        self._planned = NEVER
        self._hurried = False

    def add(self, observer: Observer) -> None:
        """Add an observer. From now on, the observer receives the events of the fit."""
        self._all.append(observer)
        for event, hearing in self.overriding.items():
            if getattr(type(observer), event) is not getattr(Observer, event):
                hearing.append(observer)
        self.look_ahead()

    def look_ahead(self) -> None:
        """Compute `due` again. An observer calls `look_ahead` if its `due` changes between two events."""
        self.due = 0 if self._hurried else min([self._planned, *[observer.due for observer in self._all]])

    def plan(self, step: int) -> None:
        """Make sure that `due` is at most `step`. Until step `due`, the end of a step only writes a mark."""
        self._planned = step
        self.look_ahead()

    def hurry(self) -> None:
        """Set `due` to 0 for good. From now on, every step counts as due."""
        self._hurried, self.due = True, 0

    @property
    def watching(self) -> bool:
        """Return True if an observer wants `steps_measured` to be called."""
        return any([observer.watching for observer in self._all])

    @property
    def following(self) -> bool:
        """Return True if an observer wants `operation` to be called."""
        return any([observer.following for observer in self._all])

    @property
    def asks(self) -> dict[str, int]:
        """Values that the observers of this rank propose to all ranks, each under its name."""
        return {name: least for observer in self._all for name, least in observer.asks.items()}

    def step_ended(self, step: int) -> None:
        """Call `step_ended` of the observers that are due. `step_began` computes the next `due`."""
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

    def steps_measured(self, steps: Sequence[Step]) -> None:
        """Call `steps_measured` of the observers whose `watching` is True."""
        for observer in self.overriding["steps_measured"]:
            if observer.watching:
                observer.steps_measured(steps)
        self.look_ahead()

    def suspended(self, seconds: float) -> bool:
        """Return True if an observer knows of a suspension in a step of so many seconds, which has just ended."""
        return any([observer.suspended(seconds) for observer in self.overriding["suspended"]])

    def findings(self, summary: Summary | None) -> tuple[Finding, ...]:
        return tuple([found for observer in self.overriding["findings"] for found in observer.findings(summary)])
