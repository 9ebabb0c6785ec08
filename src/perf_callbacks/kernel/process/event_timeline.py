"""Times stages on the device, by events on the training stream."""

import logging
import math
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, Protocol

from perf_callbacks.kernel.clock import monotonic, sleep
from perf_callbacks.kernel.engine.marks import BACK, END, WAIT, Begin, Mark, StageTracker
from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.engine.steps import UNSEEN
from perf_callbacks.kernel.failures import describe, guard
from perf_callbacks.kernel.foreign_errors import let_pass

CAPACITY = 4096
"""Events in use at once. If a step needs more, its duration stays unknown."""

MOST_BEHIND = 1024
"""Ended steps that wait for their events. Of more, the oldest is given up: its events may never complete."""

MOST_WAITS = 1024
"""Waits for other ranks that one step times with events. Later ones count for the stage around them."""

SAID_AFTER = 100
"""Missing steps in a row after which a warning is logged."""

PROBE_SECONDS = 2.0
"""Longest wait of `why_unusable` for its two events."""

LOST: Final = "lost"

CAPTURED: Final = "captured"
"""A CUDA graph was captured in the step: our events must then be neither recorded nor queried."""

log = logging.getLogger("perf_callbacks")


class Event(Protocol):
    """Point on a stream, like `torch.Event`."""

    def record(self) -> None:
        """Record the point at the current end of the current stream."""

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any, /) -> float: ...


class EventTimeline:
    """Times stages as differences between successive events on the training stream. They sum to the time of the step.

    The host queues events and never waits for them. Data time is the time in which the stream was idle, plus the copy
    of the batch. A loader that works while the device is busy adds no data time.
    """

    def __init__(
        self,
        make: Callable[[], Event],
        *,
        record: Callable[[Event], object] = lambda event: event.record(),
        capturing: Callable[[], bool] = lambda: False,
        stream: Callable[[], object] = lambda: None,
        capacity: int = CAPACITY,
    ) -> None:
        self._make, self._record, self._capacity = make, record, capacity
        self.capturing = capturing
        self._stream = stream
        self._home: object = None
        """Stream on which the current step began. Waits on other streams, such as FSDP's, get no events."""
        self._free: list[Event] = [make() for _ in range(min(64, capacity))]
        self._made = len(self._free)
        self._open: list[tuple[Mark, Event]] = []
        self._broken: str | None = None
        self._closed: deque[tuple[list[tuple[Mark, Event]], Event | str]] = deque()
        """Events of each ended step, and its end event or the reason why its duration is unknown."""
        self._lost_in_row = 0
        self._failed = False
        """True after an error of the device: no event is used any more."""
        self._waits, self._left_out = 0, list[bool]()
        """Waits in the current step; and for each open `Begin`, whether neither it nor its `BACK` gets an event."""

    def mark(self, mark: Mark) -> None:
        """Work queued from now on is of this stage. Errors of a device never reach the caller, any code of torch."""
        try:
            if self._failed:
                self._miss(mark, LOST)
            elif self.capturing():
                self._miss(mark, CAPTURED)
            elif mark is END:
                self._cut()
            elif not (self._open and isinstance(mark, Stage) and self._open[-1][0] is mark) and not self._leaves(mark):
                self._boundary(mark)
        except Exception as error:  # noqa: BLE001 for example, the device is lost
            self.fail(error)
            self._miss(mark, LOST)

    def _miss(self, mark: Mark, reason: str) -> None:
        """Leave the current step's duration unknown. After `END`, the next step begins without an event."""
        self._broken = reason
        if mark is END:
            self._close(reason)
            self._broken = reason

    def _leaves(self, mark: Mark) -> bool:
        """Return True if the mark belongs to a wait without events: on another stream, or after `MOST_WAITS` waits."""
        if mark is BACK:
            return self._left_out.pop() if self._left_out else False
        if isinstance(mark, Begin):
            self._waits += mark is WAIT
            self._left_out.append(mark is WAIT and (self._waits > MOST_WAITS or self._stream() != self._home))
            return self._left_out[-1]
        return False

    def fail(self, error: Exception) -> None:
        """Stop timing after an error of the device. Only the first error is logged."""
        let_pass(error)
        if not self._failed:
            log.warning("perf_callbacks: the device gives no more times, so steps get lost: %s.", describe(error))
        self._failed = True

    def _cut(self) -> None:
        event = self._take()
        if event is None and len(self._open) > 1:  # the step is lost; an event of the lost step begins the next step
            event = self._open.pop()[1]
            self._broken = self._broken or LOST
        if event is None:
            self._close(LOST)
            self._broken = LOST
            return
        self._record(event)
        self._close(event)
        self._open.append((END, event))
        self._home = self._stream()

    def _close(self, end: Event | str) -> None:
        finished, self._open = self._open, []
        self._closed.append((finished, self._broken or end))
        self._broken = None
        self._waits = 0
        self._left_out.clear()

    def ready(self) -> list[tuple[float, ...] | str]:
        """Return, for each step that has finished since the last call, each stage's seconds or why they are unknown."""
        done: list[tuple[float, ...] | str] = []
        if self._closed and not self._failed and self._ask(self.capturing):
            return done
        while self._closed:
            marks, end = self._closed[0]
            late = not isinstance(end, str) and (self._failed or not self._ask(end.query))
            if late and not self._failed and len(self._closed) <= MOST_BEHIND:
                break
            self._closed.popleft()
            times = LOST if late else _measure(marks, end)
            done.append(times)
            self._lost_in_row = self._lost_in_row + 1 if times is LOST else 0
            if self._lost_in_row == SAID_AFTER and not self._failed:
                log.warning("perf_callbacks: the device has given no times for %d steps in a row.", SAID_AFTER)
            self._free += [event for _, event in marks]  # an event that is not done may be recorded anew
        return done

    def _ask(self, question: Callable[[], bool]) -> bool:
        try:
            return question()
        except Exception as error:  # noqa: BLE001 for example, the device is lost
            self.fail(error)
            return False

    def _boundary(self, mark: Mark) -> None:
        event = self._take()
        if event is None:
            self._broken = self._broken or LOST
        else:
            self._record(event)
            if not self._open:
                self._home = self._stream()
            self._open.append((mark, event))

    def _take(self) -> Event | None:
        if self._free:
            return self._free.pop()
        if self._made >= self._capacity:
            return None
        self._made += 1
        return self._make()


def _measure(marks: list[tuple[Mark, Event]], end: Event | str) -> tuple[float, ...] | str:
    if isinstance(end, str):
        return end
    seconds: list[float] = [UNSEEN] * len(Stage)
    tracker = StageTracker()
    tracker.turn(marks[0][0])
    points = [*marks, (END, end)]
    try:
        lengths = [start.elapsed_time(stop) / 1000 for (_, start), (_, stop) in pairwise(points)]
    except Exception as error:  # noqa: BLE001 for example, an event on another stream is not done
        let_pass(error)
        return LOST
    for (mark, _), length in zip(points[1:], _in_order(lengths), strict=True):
        seconds[tracker.turn(mark)] += length
    return tuple(seconds[: len(STAGES)]) if 0 < sum(seconds[: len(STAGES)]) < math.inf else LOST


def _in_order(lengths: list[float]) -> list[float]:
    """Replace negative lengths by 0, and shorten other lengths so that the sum stays the same.

    A length is negative if events of two streams are out of order.

    >>> _in_order([4.0, -1.0, 2.0])
    [4.0, 0.0, 1.0]
    """
    if min(lengths) >= 0:
        return lengths
    end, point, latest = sum(lengths), 0.0, 0.0
    ordered = []
    for length in lengths:
        point += length
        before, latest = latest, min(max(latest, point), end)
        ordered.append(latest - before)
    return ordered


def recording_on(module: Any, place: Any) -> Callable[[Any], None]:
    """Record events on the current stream of `place`: without a stream, the current device may be another."""
    current, index = getattr(module, "current_device", None), place.index

    def record(event: Any) -> None:
        if current is None or current() == index:
            event.record()
        else:
            event.record(module.current_stream(place))

    return record


def why_unusable(make: Callable[[], Event], record: Callable[[Event], object], *, reliable: bool = False) -> str | None:
    """Return why a device's events can't time steps, by a test with two of them.

    After two seconds, behind work such as a wait for rank 0's weights, only `reliable` events count as usable.
    """
    with guard() as attempt:
        first, second = make(), make()
        record(first)
        record(second)
        deadline = monotonic() + PROBE_SECONDS
        while not second.query():
            if monotonic() > deadline:
                return None if reliable else f"its events did not complete within {PROBE_SECONDS:.0f} s"
            sleep(0.001)
        between = first.elapsed_time(second)
        if 0 <= between < math.inf:
            return None
        return f"two of its events in a row were {between} ms apart"
    return f"its events fail: {attempt.reason}"
