"""Marks with their times. Marks are written one at a time, and read for many steps at once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import add, sub
from typing import Any, NamedTuple

from perf_callbacks.kernel.engine.marks import END, Calls, Mark, Pause, StageTracker
from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.engine.steps import UNSEEN

_GC, _ASIDE = Stage.GC, Stage.ASIDE


class StageTimes(NamedTuple):
    """Steps that were read from the tape, in columns."""

    stages: Sequence[list[float]]
    pauses: list[tuple[float, ...]]
    """Of each garbage collection, in one tuple per step."""
    calls: list[Calls]
    seconds: list[float]

    @property
    def rows(self) -> list[tuple[float, ...]]:
        return [*zip(*self.stages, strict=True)]


PlacedPause = tuple[Pause, Stage, int]
"""A garbage collection, its stage, and the index of the step in the result of `read`."""


class Tape:
    """A list in which each mark is followed by its time. A garbage collection is a mark whose time is None.

    `write` is, as a rule, the method `extend` of the list: fast, and no garbage collection can interrupt the call.
    """

    def __init__(self, echo: Callable[[Mark], object] | None = None) -> None:
        self.pairs: list[Any] = []
        self._echo = echo
        self._follower: StageTracker | None = None
        self.write: Callable[[tuple[Any, Any]], object] = _nowhere
        """Drops the pair while marks are ignored."""
        self._tracker = StageTracker()
        self._last = 0.0
        self._seconds: list[float] = [UNSEEN] * len(Stage)
        self._begun = False
        self._since: list[Pause] = []
        self._pauses: list[float] = []
        self.part: str | None = None
        """Current part of the stage `OTHER`, such as "generation". None: no named part."""

    def begin(self, now: float) -> None:
        self._last = now
        self.listen()

    def listen(self) -> None:
        self.write = self.pairs.extend if self._echo is None and self._follower is None else self._write_and_echo

    def ignore(self) -> None:
        """Drop the marks from now on. Garbage collections are kept."""
        self.write = _nowhere

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Drop the marks of the block, because it is not part of the training."""
        before = self.write
        self.ignore()
        try:
            yield
        finally:
            if before is not _nowhere:
                self.listen()

    def follow(self) -> StageTracker:
        """Return a tracker that follows each new mark. Tracking is slow: stop it after a single step."""
        follower = StageTracker()
        follower.resume(self._tracker)
        for mark in self.pairs[::2]:
            if type(mark) is not Pause:
                follower.turn(mark)
            if mark is END:
                follower.take_calls()
        follower.earlier = follower.take_calls()
        self._follower = follower
        if self.write is not _nowhere:
            self.listen()
        return follower

    def unfollow(self) -> None:
        self._follower = None
        if self.write is not _nowhere:
            self.listen()

    def note(self, pause: Pause) -> None:
        self.pairs.extend((pause, None))

    def _write_and_echo(self, pair: tuple[Mark, float]) -> None:
        self.pairs.extend(pair)
        if self._follower is not None:
            self._follower.turn(pair[0])
        if self._echo is not None:
            self._echo(pair[0])

    def take(self) -> list[Any]:
        written = self.pairs[:]
        del self.pairs[: len(written)]
        return written

    def read(self, written: list[Any] | None = None) -> tuple[StageTimes, list[PlacedPause]]:
        """Return the steps that ended, and the garbage collections. `written` is what `take` has returned."""
        written = self.take() if written is None else written
        marks, times = written[::2], written[1::2]
        done = StageTimes([[] for _ in STAGES], [], [], [])
        pauses: list[PlacedPause] = []
        for start, stop, width in _runs(marks):
            first = marks[start : start + width]
            if width and not self._begun and not any([type(mark) is Pause for mark in first]):
                self._alike(first, times[start:stop], done)
            else:
                self._one_by_one(marks[start:stop], times[start:stop], done, pauses)
        return done, pauses

    def turned(self) -> tuple[Stage, float]:
        """Return the current stage of the training thread, and the time of the newest mark, from any thread."""
        tracker, last = StageTracker(), self._last
        tracker.stage, tracker.before = self._tracker.stage, self._tracker.before[:]
        pairs = self.pairs[:]
        marks = pairs[::2]
        begun = len(marks) - marks[::-1].index(END) - 1 if END in marks else 0
        for mark, time in zip(marks[begun:], pairs[1::2][begun:], strict=False):
            if type(mark) is not Pause:
                tracker.turn(mark)
                last = time
        return tracker.stage, last

    def step_began(self) -> float:
        """Any thread may call this."""
        pairs = self.pairs[:]
        marks = pairs[::2]
        if END in marks:
            return float(pairs[1::2][len(marks) - marks[::-1].index(END) - 1])
        return self._last - sum(self._seconds)

    def peek(self) -> StageTimes:
        """Return the steps that ended since the last `read`, and leave the marks on the tape."""
        copy = Tape()
        copy.pairs = self.pairs[:]
        copy._tracker.stage, copy._tracker.before = self._tracker.stage, self._tracker.before[:]
        copy._last, copy._seconds, copy._begun = self._last, self._seconds[:], self._begun
        copy._since, copy._pauses = self._since[:], self._pauses[:]
        return copy.read()[0]

    def _alike(self, marks: list[Mark], times: list[float], done: StageTimes) -> None:
        """Read steps that have equal marks: column by column is faster than one by one."""
        width, steps = len(marks), len(times) // len(marks)
        columns: list[list[float]] = [[]] * len(Stage)
        owners = [self._tracker.turn(mark) for mark in marks]
        begin = before = [self._last, *times[width - 1 : -1 : width]]
        for place, owner in enumerate(owners):
            if place + 1 < width and owner is owners[place + 1]:
                continue
            end = times[place::width]
            column = [*map(sub, end, begin)]
            columns[owner] = [*map(add, columns[owner], column)] if columns[owner] else column
            begin = end
        seconds = [*map(sub, begin, before)]
        done.seconds.extend(map(sub, seconds, columns[_ASIDE]) if columns[_ASIDE] else seconds)
        self._last = times[-1]
        for stage, column in zip(done.stages, columns, strict=False):
            stage.extend(column or [UNSEEN] * steps)
        done.pauses.extend([()] * steps)
        done.calls.extend([self._tracker.take_calls()] * steps)

    def _one_by_one(self, marks: list[Any], times: list[Any], done: StageTimes, pauses: list[PlacedPause]) -> None:
        for mark, time in zip(marks, times, strict=True):
            if type(mark) is Pause:
                self._pause(mark, pauses, len(done.calls))
                continue
            owner = self._tracker.turn(mark)
            self._seconds[owner] += time - self._last
            if self._since:
                self._carve(owner, time)
            self._last = time
            self._begun = mark is not END or bool(self._since)
            if mark is END:
                for stage, seconds in zip(done.stages, self._seconds, strict=False):
                    stage.append(seconds)
                done.seconds.append(sum(self._seconds[: len(STAGES)]))
                done.pauses.append(tuple(self._pauses))
                done.calls.append(self._tracker.take_calls())
                self._seconds = [UNSEEN] * len(Stage)
                self._pauses = []

    def _pause(self, pause: Pause, pauses: list[PlacedPause], step: int) -> None:
        stage = self._tracker.stage
        pauses.append((pause, stage, step))
        self._begun = True  # the rest of the step has to be read mark by mark
        if pause.here and stage is not _ASIDE:
            self._pauses.append(pause.seconds)
            self._since.append(pause)

    def _carve(self, stage: Stage, until: float) -> None:
        """Move garbage collections that began before `until` from `stage` to the stage `GC`."""
        for pause in self._since:
            if pause.start < until:
                self._seconds[stage] -= pause.seconds
                self._seconds[_GC] += pause.seconds
        self._since = [pause for pause in self._since if pause.start >= until]


def _nowhere(_pair: object) -> None: ...


def _runs(marks: list[Any]) -> Iterator[tuple[int, int, int]]:
    """Find series of equal steps: first index, index after the last, marks per step (0: an unfinished step)."""
    start = 0
    while start < len(marks):
        try:
            stop = marks.index(END, start) + 1
        except ValueError:
            yield start, len(marks), 0
            return
        width, first = stop - start, marks[start:stop]
        if marks[start:] == first * ((len(marks) - start) // width):  # as a rule, all steps have equal marks
            yield start, len(marks), width
            return
        while marks[stop : stop + width] == first:
            stop += width
        yield start, stop, width
        start = stop
