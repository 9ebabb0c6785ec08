"""Local time of a rank: the time from one meeting of ranks to the next, without waits.

At a meeting, ranks wait for each other: in collectives, in other waits for ranks, and at the end of a backward whose
gradients `DistributedDataParallel` reduces. At most one cycle, from meeting to meeting, ends in each step: with the
last backward that reduces gradients, or else with the last wait. A cycle may last several steps, such as eight if ranks
wait for each other only in every eighth.
"""

import math
from collections import deque
from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

from typing_extensions import override

from perf_callbacks.kernel.engine.marks import BACK, BEGIN, END, WAIT, Pause, StageTracker
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.units import NANOSECOND

MOST_STEPS = 4096
"""Steps whose local times are kept for `take`."""


class Moment(NamedTuple):
    """This rank had computed the last gradient of a backward."""

    time: float
    line: bytes
    """The thread's `schedstat` in `/proc`; in short steps, the previous one. The second number are nanoseconds
    without CPU."""
    reduced: bool
    """True: `DistributedDataParallel` waits for other ranks at the end of this backward."""


class LocalTime(NamedTuple):
    """Seconds of one rank in the cycle that ends in a step; unknown is NaN, and without an end, all except `waited`."""

    local: float
    """Time of the cycle without waits for other ranks."""
    gc: float
    """Part of `local` that garbage collections took."""
    data: float
    """Part of `local` in which the thread waited for data, without garbage collections."""
    steal: float
    """Part of `local` in which the thread was ready to run but had no CPU."""
    waited: float
    """Waits for other ranks and exchanges of gradients, within the backwards of the step."""


class Shape(NamedTuple):
    """Positions of meetings, of waits for data and of evaluations among the marks of a step."""

    meetings: tuple[tuple[int, int, bool], ...]
    """Begin and end of each wait, and True if it is within a backward; for each backward: -1, its end, and True."""
    data: tuple[tuple[int, int], ...]
    """Begin and end of each wait for data."""
    asides: tuple[int, ...]
    """Begins of evaluations and other interruptions of training."""


class LocalTimes(Observer):
    """Computes local times from the marks of the tape, and from the times at which gradients were done."""

    def __init__(self, moments: "deque[Moment]", *, reduced: bool) -> None:
        """`marks_read` removes each backward's `Moment` after reading it. `reduced`: a wrapper reduces gradients."""
        self._moments, self._reduced = moments, reduced
        self._steps: dict[int, LocalTime] = {}
        self._marks: list[Any] = []  # of the step that has not ended
        self._times: list[float] = []
        self._pauses: deque[Pause] = deque()
        self._last_marks: list[Any] = []
        self._last_shape = Shape((), (), ())
        self._met = math.nan
        """Last meeting, at which the cycle began. NaN: unknown, or an evaluation came after it."""
        self._waited = 0.0
        """In the current cycle so far."""
        self._collected_seconds = self._fetched_seconds = 0.0
        """In the current cycle so far."""
        self._fetched: list[tuple[float, float]] = []
        """Each wait for data after the last meeting."""
        self._delay = math.nan
        """Seconds without a CPU from the start of the thread to the begin of the current cycle."""
        self._line = b""
        self._unread: list[int] = []  # steps since the line was read

    @override
    def marks_read(self, pairs: Sequence[Any], numbers: Sequence[int]) -> None:
        marks, times = [*self._marks, *pairs[::2]], [*self._times, *pairs[1::2]]
        length = len(self._last_marks)
        alike = length > 0 and marks == self._last_marks * len(numbers)  # usually true, and compared in C
        if not alike and Pause in {*map(type, marks)}:
            self._pauses.extend([mark for mark in marks if type(mark) is Pause and mark.here])
            kept = [type(mark) is not Pause for mark in marks]
            marks, times = [*compress(marks, kept)], [*compress(times, kept)]
        start = 0
        for number in numbers:
            if not alike:
                try:
                    length = marks.index(END, start) + 1 - start
                except ValueError:
                    break
                step = marks[start : start + length]
                if step != self._last_marks:
                    self._last_marks, self._last_shape = step, shape(step)
            self._step(number, times[start : start + length], self._last_shape)
            start += length
        self._marks, self._times = marks[start:], times[start:]
        while len(self._steps) > MOST_STEPS:
            del self._steps[next(iter(self._steps))]

    def take(self, numbers: Sequence[int]) -> list[LocalTime | None]:
        """Remove and return the local times of these steps. None: a step's marks were not read."""
        return [self._steps.pop(number, None) for number in numbers]

    def _step(self, number: int, times: Sequence[float], shape: Shape) -> None:
        waits, in_backward, line, ends = self._waits(times, shape)
        place = ends[0] if ends[0] >= 0 else ends[1]
        until = times[place] if place >= 0 else times[-1]
        data = [*self._fetched, *[(times[begin], times[end]) for begin, end in shape.data]]
        fetched, self._fetched = [span for span in data if span[1] <= until], [span for span in data if span[1] > until]
        collected, while_fetching = self._collected(until, fetched)
        self._collected_seconds += collected
        self._fetched_seconds += math.fsum([end - begin for begin, end in fetched]) - while_fetching
        if place < 0:  # the ranks don't meet in this step
            self._steps[number] = LocalTime(math.nan, math.nan, math.nan, math.nan, in_backward)
            self._met = math.nan if shape.asides else self._met
        else:
            waited = math.fsum([self._waited, *[seconds for at, seconds in waits if at <= until]])
            self._waited = math.fsum([seconds for at, seconds in waits if at > until])
            aside = any([begin < place for begin in shape.asides])
            local = math.nan if aside else until - self._met - waited
            delay = _delay(line)
            steal = delay - self._delay
            self._steps[number] = LocalTime(local, self._collected_seconds, self._fetched_seconds, steal, in_backward)
            self._collected_seconds = self._fetched_seconds = 0.0
            self._met = math.nan if any([begin > place for begin in shape.asides]) else until
            self._delay = delay
        if not line:  # no gradient was done in this step, or no file shows the time without a CPU
            self._unread.clear()
        elif line is self._line:
            self._unread.append(number)
        else:
            unread, self._line, self._unread = self._unread, line, []
            if unread:
                self._spread([*unread, number])

    def _spread(self, numbers: Sequence[int]) -> None:
        """Divide the time without a CPU, all in the final step, among the steps in proportion to their local times."""
        steal = self._steps[numbers[-1]].steal
        steps = {number: self._steps[number] for number in numbers if number in self._steps}
        lengths = [max(0.0, step.local) for step in steps.values()]  # 0 if unknown
        whole = sum(lengths)
        if whole > 0 and steal > 0:
            for (number, step), length in zip(steps.items(), lengths, strict=True):
                self._steps[number] = step._replace(steal=steal * length / whole)

    def _last_moment(self, until: float) -> Moment | None:
        """Remove each `Moment` up to a time, and return the latest one."""
        last = None
        while self._moments and self._moments[0].time <= until:
            last = self._moments.popleft()
        return last

    def _waits(
        self, times: Sequence[float], shape: Shape
    ) -> tuple[list[tuple[float, float]], float, bytes, tuple[int, int]]:
        """Return the waits of a step: end and seconds of each, and the seconds of all within backwards.

        Then the latest `schedstat`, and where the last backward with reduced gradients and the last wait end, or -1.
        """
        waits, in_backward, line, reduced, waited = [], 0.0, b"", -1, -1
        inner: list[tuple[float, float]] = []  # begin and seconds of the waits in the current backward
        for begin, place, inside in shape.meetings:
            now = times[place]
            if begin >= 0:
                seconds, waited = now - times[begin], place
                if inside:
                    inner.append((times[begin], seconds))
            else:
                moment = self._last_moment(now)
                line = line if moment is None else moment.line
                timed, inner = inner, []
                if not (self._reduced if moment is None else moment.reduced):
                    continue  # the backward ends without waiting
                reduced = place
                # Without a moment, the wait is unknown: the parameter got no gradient.
                seconds = math.nan if moment is None else now - moment.time
                seconds -= sum([part for start, part in timed if moment is not None and start >= moment.time])
            waits.append((now, seconds))
            in_backward += seconds if inside else 0.0
        return waits, in_backward, line, (reduced, waited)

    def _collected(self, until: float, fetched: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """Remove collections that began before `until`: return their seconds, and the part within waits for data."""
        seconds = meanwhile = 0.0
        while self._pauses and not self._pauses[0].start >= until:
            pause = self._pauses.popleft()
            if pause.start >= self._met:
                seconds += pause.seconds
                meanwhile += pause.seconds if any([begin <= pause.start < end for begin, end in fetched]) else 0.0
        return seconds, meanwhile


def shape(marks: Sequence[Any]) -> Shape:
    tracker = StageTracker()
    meetings: list[tuple[int, int, bool]] = []
    data, asides = [], []
    for place, mark in enumerate(marks):
        stage = tracker.turn(mark)
        if stage is Stage.BACKWARD and tracker.stage is not Stage.BACKWARD:
            meetings.append((-1, place, True))
        if stage is Stage.DATA and place:
            data.append((place - 1, place))
        if mark is BEGIN[Stage.ASIDE]:
            asides.append(place)
        if mark is WAIT and tracker.stage is not Stage.ASIDE and marks[place + 1 : place + 2] == [BACK]:
            meetings.append((place, place + 1, tracker.stage is Stage.BACKWARD))
    return Shape(tuple(meetings), tuple(data), tuple(asides))


def _delay(line: bytes) -> float:
    """Return the seconds without a CPU from a line of `schedstat`; NaN without one.

    >>> _delay(b"3277653508 136843134 389")
    0.136843134
    """
    return int(line.split()[1]) * NANOSECOND if line else math.nan
