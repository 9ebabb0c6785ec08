"""What the training thread turned to and when: written down as it happens, read later, many steps at once."""

from typing import Any

from perf_callbacks.core.stages import STAGES, Stage
from perf_callbacks.core.steps import UNSEEN

# Looking a member up in its class costs as much as the rest of a mark.
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
        self._pauses: list[tuple[float, float]] = []

    def begin(self, now: float) -> None:
        """The first step begins."""
        self._last = now

    def read(self) -> list[tuple[float, ...]]:
        """Stage seconds of the steps that ended since the last call. What was read is gone."""
        done: list[tuple[float, ...]] = []
        written = self[:]
        del self[: len(written)]
        seconds, current, last = self._seconds, self._stage, self._last
        pairs = iter(written)
        for stage, time in zip(pairs, pairs, strict=True):
            if stage is _GC:
                self._pauses.append(time)
                continue
            if current is _UNDECIDED:
                current = _OPTIMIZER if stage is _OPTIMIZER else _OTHER
            seconds[current] += time - last
            if self._pauses:
                self._carve(current, time, seconds)
            last = time
            current = stage
            if stage is None:
                done.append(tuple(seconds[: len(STAGES)]))
                seconds = [UNSEEN] * len(Stage)
                current = _OTHER
        self._seconds, self._stage, self._last = seconds, current, last
        return done

    def _carve(self, stage: Stage, until: float, seconds: list[float]) -> None:
        """Take the pauses before `until` out of the stage they fell in. A later one was written before its time."""
        for start, pause in self._pauses:
            if start < until:
                seconds[stage] -= pause
                seconds[_GC] += pause
        self._pauses = [pause for pause in self._pauses if pause[0] >= until]
