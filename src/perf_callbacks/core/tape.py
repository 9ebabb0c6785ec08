"""What the training thread turned to and when: written down as it happens, read later, many steps at once."""

from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import add, sub
from typing import Any

from perf_callbacks.core.stages import STAGES, Stage
from perf_callbacks.core.steps import UNSEEN

# Looking a member up in its class costs more than most of what is done here.
_GC, _OPTIMIZER, _OTHER, _UNDECIDED = Stage.GC, Stage.OPTIMIZER, Stage.OTHER, Stage.UNDECIDED


class Tape(list[Any]):
    """Pairs, one after the other: a stage and when it began; None and when a step ended; GC and the pause it was.

    A pair is written by one call of `extend`: the collector may run before and after it, not in the middle.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stage = _OTHER
        self._last = 0.0
        self._seconds: list[float] = [UNSEEN] * len(Stage)
        self._begun = False
        self._pauses: list[tuple[float, float]] = []

    def begin(self, now: float) -> None:
        """The first step begins."""
        self._last = now

    def read(self) -> list[tuple[float, ...]]:
        """Stage seconds of the steps that ended since the last call. What was read is gone."""
        written = self[:]
        del self[: len(written)]
        stages, times = written[::2], written[1::2]
        done: list[tuple[float, ...]] = []
        for start, stop, width in _runs(stages):
            if width and not self._begun and not self._pauses and _GC not in stages[start : start + width]:
                done += self._alike(stages[start : start + width], times[start:stop])
            else:
                done += self._one_by_one(stages[start:stop], times[start:stop])
        return done

    def _alike(self, stages: list[Stage | None], times: list[float]) -> Iterable[tuple[float, ...]]:
        """Steps that went through the same stages: column by column, which is several times as fast as one by one."""
        spans = list(map(sub, times, [self._last, *times]))
        columns: list[Iterable[float]] = [repeat(UNSEEN)] * len(Stage)
        seen: set[Stage] = set()
        stage = _OTHER
        for place, following in enumerate(stages):
            column: Iterable[float] = spans[place :: len(stages)]
            owner = _decide(stage, following)
            columns[owner] = list(map(add, columns[owner], column)) if owner in seen else column
            seen.add(owner)
            stage = _OTHER if following is None else following
        self._last = times[-1]
        return zip(*columns[: len(STAGES)], strict=False)

    def _one_by_one(self, stages: list[Stage | None], times: list[Any]) -> Iterator[tuple[float, ...]]:
        for following, time in zip(stages, times, strict=True):
            if following is _GC:
                self._pauses.append(time)
                continue
            owner = _decide(self._stage, following)
            self._seconds[owner] += time - self._last
            if self._pauses:
                self._carve(owner, time)
            self._last = time
            self._stage = _OTHER if following is None else following
            self._begun = following is not None
            if following is None:
                yield tuple(self._seconds[: len(STAGES)])
                self._seconds = [UNSEEN] * len(Stage)

    def _carve(self, stage: Stage, until: float) -> None:
        """Take the pauses before `until` out of the stage they fell in. A later one was written before its time."""
        for start, pause in self._pauses:
            if start < until:
                self._seconds[stage] -= pause
                self._seconds[_GC] += pause
        self._pauses = [pause for pause in self._pauses if pause[0] >= until]


def _runs(stages: list[Stage | None]) -> Iterator[tuple[int, int, int]]:
    """Where steps of the same stages begin and end, and how many marks each has; 0 for a step without an end yet."""
    start = 0
    while start < len(stages):
        stop = next((place + 1 for place in range(start, len(stages)) if stages[place] is None), 0)
        if not stop:
            yield start, len(stages), 0
            return
        width, first = stop - start, stages[start:stop]
        while stages[stop : stop + width] == first:
            stop += width
        yield start, stop, width
        start = stop


def _decide(stage: Stage, following: Stage | None) -> Stage:
    """What follows a backward shows what the time since belongs to."""
    if stage is _UNDECIDED:
        return _OPTIMIZER if following is _OPTIMIZER else _OTHER
    return stage
