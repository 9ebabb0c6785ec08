"""Turns of a training, with and without the callback: seconds that the callback adds to a step and to a run."""

import itertools
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SETTLING = 320
"""Steps at the start of a turn that are not compared: the callback counts FLOPs in some of them."""

COUNTED = 256
"""Steps of a turn that are compared. The callback writes its journal and sums up its figures within each 256 steps."""

STEPS = SETTLING + COUNTED
"""Steps of a turn."""

RESAMPLES = 1000
"""Resamples of the differences, for an interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingTurn:
    """One turn of a training."""

    quiet_seconds: float
    """Duration of a quiet step: the 10th percentile of the compared steps, because other programs disturb it least."""
    cpu_seconds: float
    """CPU time of the mean compared step."""
    other_seconds: float
    """Duration of the rest of the turn: the beginning, the steps that are not compared, and the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MedianInterval:
    """Median of the turns, with its 95 % interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Seconds that the callback adds to a training."""

    integration: str
    turns: int
    """Turns with the callback."""
    step_seconds: float
    """Duration of a quiet step without the callback."""
    step: MedianInterval
    """Seconds that the callback adds to a quiet step."""
    control: MedianInterval
    """Difference between two turns without the callback. Zero is inside, unless other programs disturb."""
    cpu: MedianInterval
    """Seconds of CPU time that the callback adds to the mean step, including work in every 64th or 256th step."""
    run: MedianInterval
    """Seconds that the callback adds once per run: at the start, in the first 320 steps, and at the end."""


class Stopwatch:
    """Times the steps of one turn."""

    def __init__(self, clock: Callable[[], float], cpu_clock: Callable[[], float]) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._began = clock()
        self._ends: list[float] = []
        self._cpu: list[float] = []

    def step_ended(self) -> None:
        """Take the time at the end of a step."""
        self._ends.append(self._clock())
        if len(self._ends) in {SETTLING, STEPS}:
            self._cpu.append(self._cpu_clock())

    def turn(self) -> TrainingTurn:
        """Return the times of the turn."""
        ends, (start, end) = self._ends[SETTLING - 1 : STEPS], self._cpu
        steps = sorted([after - before for before, after in itertools.pairwise(ends)])
        return TrainingTurn(
            quiet_seconds=steps[len(steps) // 10],
            cpu_seconds=(end - start) / COUNTED,
            other_seconds=self._clock() - self._began - (ends[-1] - ends[0]),
        )


def measure(integration: str, turn: Callable[..., TrainingTurn], seconds: float, clock: Callable[[], float]) -> Cost:
    """Take turns without, with and without the callback for some seconds; at least three turns with the callback.

    Args:
        integration: Name of the integration.
        turn: Takes a turn, with the callback if `armed`.
        seconds: Time for all turns.
        clock: Clock that limits the turns.
    """
    turn(armed=True)  # a first turn pays for imports and caches
    end = clock() + seconds
    plain, armed = [turn(armed=False)], list[TrainingTurn]()
    while len(armed) < 3 or clock() < end:  # noqa: PLR2004 fewer turns have no interval
        armed.append(turn(armed=True))
        plain += [turn(armed=False), turn(armed=False)]
    quiet = [one.quiet_seconds for one in plain]
    return Cost(
        integration=integration,
        turns=len(armed),
        step_seconds=statistics.median(quiet),
        step=_added(plain, armed, lambda one: one.quiet_seconds),
        control=interval([after - before for before, after in zip(quiet[1::2], quiet[2::2], strict=True)]),
        cpu=_added(plain, armed, lambda one: one.cpu_seconds),
        run=_added(plain, armed, lambda one: one.other_seconds),
    )


def _added(
    plain: Sequence[TrainingTurn], armed: Sequence[TrainingTurn], part: Callable[[TrainingTurn], float]
) -> MedianInterval:
    """Return the difference between each turn with the callback and the mean of the turns before and after."""
    pairs = zip(armed, plain[::2], plain[1::2], strict=False)
    return interval([part(ours) - (part(before) + part(after)) / 2 for ours, before, after in pairs])


def interval(values: Sequence[float]) -> MedianInterval:
    """Return the median of values with its 95 % bootstrap interval."""
    draw = random.Random(0)  # noqa: S311 resamples are no secret
    medians = sorted([statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)])
    return MedianInterval(
        median=statistics.median(values), low=medians[RESAMPLES // 40], high=medians[-1 - RESAMPLES // 40]
    )
