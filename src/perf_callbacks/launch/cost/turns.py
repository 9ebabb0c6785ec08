"""Seconds that the callback adds to a step and to a run, from short trainings with and without the callback.

Each short training is called a turn.
"""

import itertools
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SETTLING = 320
"""Number of steps at the start of a training that are not compared. In some of these steps, the callback counts FLOPs.
"""

COUNTED = 256
"""Number of compared steps of a training. Within 256 steps, the callback writes its journal at least once."""

STEPS = SETTLING + COUNTED
"""Number of steps of a training."""

RESAMPLES = 1000
"""Number of bootstrap resamples for a confidence interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingTurn:
    """Times of one short training."""

    quiet_seconds: float
    """Seconds of a quiet step: the 10th percentile of the compared steps. Other programs hardly disturb a quiet step.
    """
    cpu_seconds: float
    """Mean CPU time of a compared step, in seconds."""
    other_seconds: float
    """Seconds of the training before and after the compared steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MedianInterval:
    """Median of a value over several trainings, with its 95 % confidence interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Seconds that the callback adds to a training."""

    integration: str
    turns: int
    """Number of trainings with the callback."""
    step_seconds: float
    """Seconds of a quiet step without the callback."""
    step: MedianInterval
    """Seconds that the callback adds to a quiet step."""
    control: MedianInterval
    """Difference in seconds between two trainings without the callback. The interval should contain zero."""
    cpu: MedianInterval
    """Mean CPU time in seconds that the callback adds to a step. Work that is done only in every 64th or 256th step is
    included."""
    run: MedianInterval
    """Seconds that the callback adds once per run: at the start, in the first 320 steps, and at the end."""


class Stopwatch:
    """Measures the times of all steps of one training."""

    def __init__(self, clock: Callable[[], float], cpu_clock: Callable[[], float]) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._began = clock()
        self._ends: list[float] = []
        self._cpu: list[float] = []

    def step_ended(self) -> None:
        self._ends.append(self._clock())
        if len(self._ends) in {SETTLING, STEPS}:
            self._cpu.append(self._cpu_clock())

    def turn(self) -> TrainingTurn:
        ends, (start, end) = self._ends[SETTLING - 1 : STEPS], self._cpu
        steps = sorted([after - before for before, after in itertools.pairwise(ends)])
        return TrainingTurn(
            quiet_seconds=steps[len(steps) // 10],
            cpu_seconds=(end - start) / COUNTED,
            other_seconds=self._clock() - self._began - (ends[-1] - ends[0]),
        )


def measure(integration: str, turn: Callable[..., TrainingTurn], seconds: float, clock: Callable[[], float]) -> Cost:
    """Run short trainings with and without the callback in turn. At least three trainings have the callback.

    Args:
        integration: Name of the integration.
        turn: Function that runs one short training, with the callback if `armed` is True, and returns its times.
        seconds: Seconds for all trainings together.
        clock: Clock that measures these seconds.
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
    """Return the difference between a training with the callback and the mean of two trainings without the callback."""
    pairs = zip(armed, plain[::2], plain[1::2], strict=False)
    return interval([part(ours) - (part(before) + part(after)) / 2 for ours, before, after in pairs])


def interval(values: Sequence[float]) -> MedianInterval:
    draw = random.Random(0)  # noqa: S311 resamples are no secret
    medians = sorted([statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)])
    return MedianInterval(
        median=statistics.median(values), low=medians[RESAMPLES // 40], high=medians[-1 - RESAMPLES // 40]
    )
