"""The local time of each step: from the end of a backward, where all ranks go on together, to the last local gradient.

Between that gradient and the end of the backward, a rank of data-parallel training waits for the other ranks.
"""

import math
from collections import deque
from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

from perf_callbacks.kernel.engine.marks import BEGIN, END, Pause, StageTracker
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import Stage

MOST_STEPS = 4096
"""Most steps that wait for `take`."""

NANOSECONDS = 1e-9


class LocalTime(NamedTuple):
    """Seconds of a step on one rank; NaN if unknown."""

    local: float
    """Time from the end of the previous step's backward to the last gradient of this step, without waiting."""
    gc: float
    """Part of `local` in garbage collections."""
    steal: float
    """Part of `local` in which the thread was ready to run and had no CPU."""
    waited: float
    """Time from the last gradient to the end of the backward, added up over the step's backwards."""


class Shape(NamedTuple):
    """The marks of a step."""

    backward_ends: tuple[int, ...]
    """Places of the marks that end a backward."""
    aside: bool
    """True: an evaluation or the like falls before the last of these marks."""
    aside_after: bool
    """True: an evaluation or the like falls after the last of these marks."""


class LocalTimes(Observer):
    """Computes local times from the marks of the tape and the moments at which gradients were done.

    A moment holds a time and a line of `/proc/<pid>/schedstat`. The line's second number is the nanoseconds without a
    CPU. In short steps the file is not read each time, and the moment carries the previous line again.
    """

    def __init__(self, moments: "deque[tuple[float, bytes]]") -> None:
        self._moments = moments
        self._steps: dict[int, LocalTime] = {}
        self._marks: list[Any] = []  # of the step that has not ended
        self._times: list[float] = []
        self._pauses: deque[Pause] = deque()
        self._last_marks: list[Any] = []
        self._last_shape = Shape((), aside=False, aside_after=False)
        self._released = self._delay = math.nan
        """End of the last backward, and the seconds without a CPU up to the last gradient."""
        self._line = b""
        self._unread: list[int] = []  # steps since the line was read

    def marks_read(self, pairs: Sequence[Any], numbers: Sequence[int]) -> None:
        """Read marks and times, in pairs. `numbers`: the steps that end in these marks."""
        marks, times = [*self._marks, *pairs[::2]], [*self._times, *pairs[1::2]]
        length = len(self._last_marks)
        alike = length > 0 and marks == self._last_marks * len(numbers)  # as a rule: a comparison in C
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
            ends = [times[start + place] for place in self._last_shape.backward_ends]
            self._step(number, ends, self._last_shape)
            start += length
        self._marks, self._times = marks[start:], times[start:]
        while len(self._steps) > MOST_STEPS:
            del self._steps[next(iter(self._steps))]

    def take(self, numbers: Sequence[int]) -> list[LocalTime | None]:
        """Take the times of these steps; None for a step that was not read."""
        return [self._steps.pop(number, None) for number in numbers]

    def _step(self, number: int, ends: Sequence[float], shape: Shape) -> None:
        waited, moment, line, before = 0.0, math.nan, b"", 0.0
        for end in ends:
            moment, before = math.nan, waited
            while self._moments and self._moments[0][0] <= end:
                moment, line = self._moments.popleft()
            waited += end - moment
        delay = _delay(line)
        local = math.nan if shape.aside else moment - self._released - before
        self._steps[number] = LocalTime(local, self._collected(moment), delay - self._delay, waited)
        self._released, self._delay = (ends[-1] if ends else math.nan), delay
        if shape.aside_after:
            self._released = math.nan
        if not line:  # there is no such file
            self._unread.clear()
        elif line is self._line:
            self._unread.append(number)
        else:
            unread, self._line, self._unread = self._unread, line, []
            if unread:
                self._spread([*unread, number])

    def _spread(self, numbers: Sequence[int]) -> None:
        """Spread the time without a CPU, read in the last of these steps, over all of these steps by length."""
        steal = self._steps[numbers[-1]].steal
        found = {number: self._steps[number] for number in numbers if number in self._steps}
        lengths = [max(0.0, one.local) for one in found.values()]  # 0 if unknown
        whole = sum(lengths)
        if whole > 0 and steal > 0:
            for (number, one), length in zip(found.items(), lengths, strict=True):
                self._steps[number] = one._replace(steal=steal * length / whole)

    def _collected(self, until: float) -> float:
        """Return the seconds of the collections since the last backward."""
        seconds = 0.0
        while self._pauses and not self._pauses[0].start >= until:
            pause = self._pauses.popleft()
            if pause.start >= self._released:
                seconds += pause.seconds
        return seconds


def shape(marks: Sequence[Any]) -> Shape:
    """Find the ends of backwards, and evaluations and the like, among the marks of a step."""
    tracker, ends, asides = StageTracker(), [], []
    for place, mark in enumerate(marks):
        if tracker.turn(mark) is Stage.BACKWARD and tracker.stage is not Stage.BACKWARD:
            ends.append(place)
        if mark is BEGIN[Stage.ASIDE]:
            asides.append(place)
    last = ends[-1] if ends else len(marks)
    return Shape(tuple(ends), any([place < last for place in asides]), any([place > last for place in asides]))


def _delay(line: bytes) -> float:
    """Return the seconds without a CPU; NaN if the line is empty or malformed.

    >>> _delay(b"3277653508 136843134 389")
    0.136843134
    """
    words = line.split()
    try:
        return int(words[1]) * NANOSECONDS
    except (IndexError, ValueError):
        return math.nan
