"""The device that training runs on, and the device's clock if any."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch

from perf_callbacks.kernel.engine.marks import END, Mark, StageTracker
from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.engine.steps import UNSEEN
from perf_callbacks.kernel.foreign_errors import let_pass

CAPACITY = 4096
"""Most events in flight. A step that needs more is lost."""

EVENT_DEVICES = ("cuda", "xpu")


class Event(Protocol):
    """Point on a stream, like `torch.Event`."""

    def record(self) -> None:
        """Record the point at the current end of the stream."""

    def query(self) -> bool:
        """Return True if the stream has passed the point."""
        ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Return the milliseconds from this point to a later point."""
        ...


class Allocator(NamedTuple):
    """State of a device's allocator."""

    peak_bytes: int
    """Largest sum of all tensors since the program started or reset this value. The callback never resets it."""
    reserved_bytes: int
    """Memory that the allocator holds, used or free."""
    retries: int
    """Number of times that the device was full, so that the allocator returned memory and tried again."""


class EventTimeline:
    """Steps and stages as differences between neighbouring events on the training stream; the stages sum to the step.

    The host queues events and never waits for them. Data time is the time in which the stream was idle, plus the copy
    of the batch. A loader that works while the device is busy adds no data time.
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
        """Begin a stage or step. Work that is queued after this call belongs to this stage or step."""
        if mark is END:
            self._cut()
        elif not (self._open and isinstance(mark, Stage) and self._open[-1][0] is mark):
            self._boundary(mark)

    def _cut(self) -> None:
        """End a step, and begin the next step with the same event."""
        finished, self._open = self._open, []
        end = self._boundary(END)
        if end is None and len(finished) > 1:  # the step is lost; an event of the lost step begins the next step
            end = finished.pop()[1]
            end.record()
            self._open.append((END, end))
        self._closed.append((finished, None if self._broken else end))
        self._broken = end is None

    def ready(self) -> list[tuple[float, ...] | None]:
        """Return the stage seconds of the steps that finished since the last call; None for a lost step."""
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
    tracker = StageTracker()
    tracker.turn(marks[0][0])
    try:
        for (_, start), (mark, stop) in pairwise([*marks, (END, end)]):
            seconds[tracker.turn(mark)] += start.elapsed_time(stop) / 1000
    except RuntimeError as error:  # an event that was recorded on another stream and is not done there
        let_pass(error)
        return None
    return tuple(seconds[: len(STAGES)])


def timeline(device: torch.device) -> EventTimeline | None:
    """Return the device's own clock; None if the host's clock is to be used."""
    if device.type not in EVENT_DEVICES:
        return None
    module = torch.get_device_module(device)
    return EventTimeline(lambda: module.Event(enable_timing=True))


def default(local_rank: int = 0) -> torch.device:
    """Return the device that trainers use by default in this rank of the machine."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, local_rank if local_rank < torch.accelerator.device_count() else 0)


def name(device: torch.device) -> str:
    """Return the device's own name."""
    if device.type not in EVENT_DEVICES:
        return device.type
    return str(torch.get_device_module(device).get_device_name(device))


def allocator(device: torch.device) -> Allocator | None:
    """Read the allocator statistics of a device; None without any. Doesn't wait for the device."""
    if device.type not in EVENT_DEVICES:
        return None
    try:
        stats = torch.get_device_module(device).memory_stats(device)
        return Allocator(
            peak_bytes=stats["allocated_bytes.all.peak"],
            reserved_bytes=stats["reserved_bytes.all.current"],
            retries=stats.get("num_alloc_retries", 0),
        )
    except (RuntimeError, KeyError, AttributeError) as error:  # an allocator that is not torch's
        let_pass(error)
        return None


def allocated_bytes(device: torch.device) -> int | None:
    """Return the bytes that tensors hold on the device; None if unknown. Doesn't wait for the device."""
    if device.type not in EVENT_DEVICES:
        return None
    return int(torch.get_device_module(device).memory_allocated(device))


def peak_memory_share(device: torch.device) -> float | None:
    """Return the largest share of the device's memory that tensors have held so far; None if unknown."""
    if device.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.max_memory_allocated(device) / total
