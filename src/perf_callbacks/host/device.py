"""What training runs on, and its own clock where it has one."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import torch

from perf_callbacks.core.marks import END, Course, Mark
from perf_callbacks.core.stages import STAGES, Stage
from perf_callbacks.core.steps import UNSEEN

CAPACITY = 4096
"""Events that may be under way. A step that needs more is lost."""

EVENT_DEVICES = ("cuda", "xpu")


class Event(Protocol):
    """A point on a stream, as `torch.Event`."""

    def record(self) -> None:
        """Put the point at the end of the stream."""

    def query(self) -> bool:
        """Whether the stream has passed it."""
        ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from here to there."""
        ...


class EventTimeline:
    """Steps and stages as differences of neighbouring events on the training stream, so that they sum.

    The host queues events and never waits for one. Data time is what the stream stood idle for plus the copy itself:
    what a loader does while the device is busy costs nothing and counts for nothing.
    """

    def __init__(self, make: Callable[[], Event], *, capacity: int = CAPACITY) -> None:
        self._make = make
        self._capacity = capacity
        self._free: list[Event] = [make() for _ in range(min(64, capacity))]
        self._made = len(self._free)
        self._open: list[tuple[Mark, Event]] = []
        self._broken = False
        self._closed: deque[tuple[list[tuple[Mark, Event]], Event | None]] = deque()

    def mark(self, mark: Mark) -> None:
        """What is queued from here on comes after this mark."""
        if mark is END:
            self._cut()
        elif not (self._open and isinstance(mark, Stage) and self._open[-1][0] is mark):
            self._boundary(mark)

    def _cut(self) -> None:
        """A step ends here: the event that ends it begins the next one."""
        finished, self._open = self._open, []
        end = self._boundary(END)
        if end is None and len(finished) > 1:  # this step is lost; one of its own events saves the next one
            end = finished.pop()[1]
            end.record()
            self._open.append((END, end))
        self._closed.append((finished, None if self._broken else end))
        self._broken = end is None

    def ready(self) -> list[tuple[float, ...] | None]:
        """Stage seconds of the steps that finished since the last call; None for a lost one."""
        done: list[tuple[float, ...] | None] = []
        while self._closed:
            marks, end = self._closed[0]
            if end is not None and not end.query():
                break
            self._closed.popleft()
            done.append(_measure(marks, end))
            self._free += [event for _, event in marks]
        return done

    def _boundary(self, mark: Mark) -> Event | None:
        event = self._take()
        if event is None:
            self._broken = True
            return None
        event.record()
        self._open.append((mark, event))
        return event

    def _take(self) -> Event | None:
        if self._free:
            return self._free.pop()
        if self._made >= self._capacity:
            return None
        self._made += 1
        return self._make()


def _measure(marks: list[tuple[Mark, Event]], end: Event | None) -> tuple[float, ...] | None:
    if end is None:
        return None
    seconds: list[float] = [UNSEEN] * len(Stage)
    course = Course()
    course.turn(marks[0][0])
    try:
        for (_, start), (mark, stop) in pairwise([*marks, (END, end)]):
            seconds[course.turn(mark)] += start.elapsed_time(stop) / 1000
    except RuntimeError:  # an event that was recorded on another stream, and is not done there
        return None
    return tuple(seconds[: len(STAGES)])


def timeline(device: torch.device) -> EventTimeline | None:
    """The device's own clock; None where it has none and the host's must do."""
    if device.type not in EVENT_DEVICES:
        return None
    module = torch.get_device_module(device)
    return EventTimeline(lambda: module.Event(enable_timing=True))


def default() -> torch.device:
    """What trainers train on if nobody says otherwise."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


def name(device: torch.device) -> str:
    """What the device calls itself."""
    if device.type not in EVENT_DEVICES:
        return device.type
    return str(torch.get_device_module(device).get_device_name(device))


def allocated_bytes(device: torch.device) -> int | None:
    """Bytes of the device that tensors hold; None where it doesn't say. Nothing waits for the device."""
    if device.type not in EVENT_DEVICES:
        return None
    return int(torch.get_device_module(device).memory_allocated(device))
