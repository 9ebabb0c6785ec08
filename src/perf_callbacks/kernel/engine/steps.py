"""Steps, one by one, in columns and added up."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, NamedTuple

from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.records.fit_records import Steps

UNSEEN: float = 0
"""Seconds of a stage that was never entered: the integer, which the first seconds added to it turn into a float."""

BLOCK = 256
"""Steps that are kept one by one before they are added up, unless a second passes before."""

WATCHED_BLOCK = 64
"""As many, while an observer wants to see them."""


_TIMES = {stage: f"{stage.name.lower()}_time" for stage in STAGES}

NEVER = sys.maxsize
"""A step that does not come."""

COUNTED = "counted"
"""Why the step in which FLOPs are counted, the same on all ranks, is in no row."""

RECOUNTED = "recounted"
"""Why one is in which they are counted for a new shape: ranks may meet it at different steps, so windows have it."""


class StepFlops(NamedTuple):
    """FLOPs of an optimizer step, and how long they take at peak."""

    model_flops: int
    hardware_flops: int
    ideal_seconds: float | None = None
    """Seconds that the model's work takes at peak, each number format at its own; None: unknown."""


class Step(NamedTuple):
    """A finished optimizer step."""

    number: int
    """The trainer's count once it was done."""
    excluded: str | None
    """Why it is in no row."""
    samples: int | None
    tokens: int | None
    useful_tokens: Any
    """As `Batch.useful_tokens`."""
    effort: StepFlops | None
    """None: nobody knows what it took."""
    pause_seconds: float
    """Garbage collection, on either timeline."""
    longest_pause: float
    seconds: Sequence[float] | None
    """By stage; None where they were lost."""


class Columns(NamedTuple):
    """Finished steps in columns of equal length. A block of them is handled column by column, which costs least."""

    number: Sequence[int]
    excluded: Sequence[str | None]
    samples: Sequence[int | None]
    tokens: Sequence[int | None]
    useful_tokens: Sequence[Any]
    effort: Sequence[StepFlops | None]
    pause_seconds: Sequence[float]
    longest_pause: Sequence[float]
    step_seconds: Sequence[float | None]
    """Sum of the stages; None where they were lost."""
    stages: Sequence[Sequence[Any]]
    """Seconds, or None where they were lost: one column for each of `STAGES`."""

    @classmethod
    def of(cls, steps: Sequence[Step]) -> "Columns":
        """Put one or more steps into columns."""
        *columns, seconds = zip(*steps, strict=True)
        lost = (None,) * len(STAGES)
        stages = [*zip(*[stages or lost for stages in seconds], strict=True)]
        return cls._make([*columns, [stages and sum(stages) for stages in seconds], stages])

    @classmethod
    def joined(cls, blocks: Sequence["Columns"]) -> "Columns":
        """Put one or more blocks of steps behind each other."""
        if len(blocks) == 1:
            return blocks[0]
        *columns, stages = zip(*blocks, strict=True)
        return cls._make([*map(_one_column, columns), [*map(_one_column, zip(*stages, strict=True))]])

    @property
    def rows(self) -> list[Step]:
        """The steps one by one."""
        *columns, times, stages = self
        seconds = zip(*stages, strict=True)
        known = [None if time is None else stages for time, stages in zip(times, seconds, strict=True)]
        return [*map(Step._make, zip(*columns, known, strict=True))]

    @property
    def included(self) -> "Columns":
        """The steps that are in rows."""
        return self.only([reason is None for reason in self.excluded]) if any(self.excluded) else self

    def cut(self, start: int, stop: int | None = None) -> "Columns":
        """Steps from one place to another."""
        return self._each(lambda column: column[start:stop])

    def only(self, wanted: Sequence[bool]) -> "Columns":
        """The steps that are wanted."""
        return self._each(lambda column: [*compress(column, wanted)])

    def _each(self, change: Callable[[Sequence[Any]], Sequence[Any]]) -> "Columns":
        *columns, stages = self
        return Columns._make([*map(change, columns), [*map(change, stages)]])


def _one_column(parts: Sequence[Sequence[Any]]) -> list[Any]:
    return [*chain.from_iterable(parts)]


class Totals:
    """Steps added up. What one of them doesn't know, their sum doesn't."""

    __slots__ = (
        "effort",
        "effort_seconds",
        "effort_steps",
        "known_tokens",
        "longest_pause",
        "pause_seconds",
        "samples",
        "seconds",
        "steps",
        "untold_steps",
        "useful_tokens",
    )

    def __init__(self) -> None:
        self.steps = 0
        self.seconds: list[float] = [UNSEEN] * len(STAGES)
        self.samples: int | None = 0
        self.known_tokens = 0
        self.untold_steps = 0
        """Steps whose tokens are not known, or not yet."""
        self.useful_tokens: Any = 0
        self.effort = StepFlops(0, 0, 0.0)
        """Of the steps whose effort is known; so the next two."""
        self.effort_steps = 0
        self.effort_seconds = 0.0
        self.pause_seconds = 0.0
        self.longest_pause = 0.0

    @property
    def tokens(self) -> int | None:
        """Tokens of all of them; None where those of one are unknown."""
        return None if self.untold_steps else self.known_tokens

    def tell_tokens(self, tokens: int) -> None:
        """One of the steps has turned out to hold as many tokens."""
        self.known_tokens += tokens
        self.untold_steps -= 1

    @property
    def step_seconds(self) -> float:
        """Length of all of them."""
        return sum(self.seconds)

    def add(self, steps: Columns) -> None:
        """Add steps whose seconds are known."""
        if not steps.number:
            return
        self.steps += len(steps.number)
        self.seconds = [sum(column, total) for column, total in zip(steps.stages, self.seconds, strict=True)]
        self.samples = sum_of(steps.samples, self.samples)
        self.known_tokens += sum(filter(None, steps.tokens))
        self.untold_steps += steps.tokens.count(None)
        if self.useful_tokens is not None:
            self.useful_tokens = plus(self.useful_tokens, *steps.useful_tokens)
        self._exert(steps)
        self.pause_seconds += sum(steps.pause_seconds)
        self.longest_pause = max(self.longest_pause, *steps.longest_pause)

    def _exert(self, steps: Columns) -> None:
        known: list[StepFlops] = [*filter(None, steps.effort)]
        if not known:
            return
        seconds: Sequence[Any] = steps.step_seconds
        amounts: Iterable[Any] = zip(*known, strict=True)
        if alike(steps.effort):
            amounts = [[amount and amount * len(known)] for amount in known[0]]
        model, hardware, ideal = amounts
        before = self.effort
        self.effort = StepFlops(
            sum(model, before.model_flops), sum(hardware, before.hardware_flops), sum_of(ideal, before.ideal_seconds)
        )
        self.effort_steps += len(known)
        self.effort_seconds += sum(seconds if len(known) == len(seconds) else compress(seconds, steps.effort))

    def merge(self, other: "Totals") -> None:
        """Add what others added up."""
        self.steps += other.steps
        self.seconds = [a + b for a, b in zip(self.seconds, other.seconds, strict=True)]
        self.samples = plus(self.samples, other.samples)
        self.known_tokens += other.known_tokens
        self.untold_steps += other.untold_steps
        self.useful_tokens = plus(self.useful_tokens, other.useful_tokens)
        self.effort = StepFlops(*[plus(*amounts) for amounts in zip(self.effort, other.effort, strict=True)])
        self.effort_steps += other.effort_steps
        self.effort_seconds += other.effort_seconds
        self.pause_seconds += other.pause_seconds
        self.longest_pause = max(self.longest_pause, other.longest_pause)

    def settle(self) -> None:
        """Wait for numbers that are still under way on the device. Once per row, never in between."""
        if self.useful_tokens is not None:
            self.useful_tokens = int(self.useful_tokens)


def plus(*amounts: Any) -> Any:
    """The sum, unknown where one of them is.

    >>> plus(1, 2, 3), plus(1, None)
    (6, None)
    """
    return None if any([amount is None for amount in amounts]) else sum(amounts)


def alike(column: Sequence[Any]) -> bool:
    """Tell if one or more values are the same.

    >>> alike([1, 1]), alike([1, 2])
    (True, False)
    """
    return column[0] == column[-1] and column.count(column[0]) == len(column)


def sum_of(amounts: Sequence[Any], start: Any = 0) -> Any:
    """The sum of numbers that are not on a device, unknown where one of them is.

    >>> sum_of([1, 2, 3]), sum_of([1, None])
    (6, None)
    """
    return None if start is None or None in amounts else sum(amounts, start)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """The parts of a step that are known here, and so can be shown."""

    staged: bool
    """Its stages."""
    gc_timed: bool
    """The garbage collections in it."""
    gc_staged: bool
    """Their time, as a stage of its own. On a device's clock it is none."""
    processes: int
    """Number of processes that train: rates over all of them are known of one, and of what they tell each other."""
    devices: float | None
    """Number of devices that work on what this process counts: its own, and those of ranks that share its samples.
    None: nobody knows who shares samples."""

    def stages(self, seconds: Sequence[float]) -> list[tuple[Stage, str]]:
        """The stages of some steps, each with the name of its time in metrics and journal.

        One that was never entered is not known to be 0: a trainer may have ways of its own, which we don't see.
        """
        if not self.staged:
            return []
        seen = [stage for stage in STAGES if isinstance(seconds[stage], float) or stage is Stage.GC]
        return [(stage, _TIMES[stage]) for stage in seen if self.gc_staged or stage is not Stage.GC]


def record(steps: Columns, shown: Shown) -> Steps:
    """Steps as they stand in the journal."""
    times = steps.stages
    if any(steps.excluded) and None in steps.step_seconds:
        times = [[time for time in stage if time is not None] for stage in times]
    stages: dict[str, Any] = {
        name: tuple(steps.stages[stage]) for stage, name in shown.stages([sum(stage) for stage in times])
    }
    efforts: Sequence[Any] = steps.effort
    if alike(efforts):
        flops = (efforts[0].model_flops,) * len(efforts) if efforts[0] else ()
    else:
        flops = tuple([effort and effort.model_flops for effort in efforts])
    return Steps(
        step=tuple(steps.number),
        step_time=tuple(steps.step_seconds),
        model_flops=flops,
        samples=tuple(steps.samples),
        tokens=tuple(steps.tokens),
        excluded=tuple(steps.excluded),
        **stages,
    )
