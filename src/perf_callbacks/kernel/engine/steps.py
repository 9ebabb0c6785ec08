"""Finished steps in three forms: single steps, columns, and sums."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, NamedTuple

from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.records.fit_records import Amounts, Steps

UNSEEN: float = 0
"""Seconds of a stage that was never entered: the integer 0. Adding seconds turns it into a float."""

BLOCK = 256
"""Most steps that are kept one by one before they are added up, which also happens once a second."""

WATCHED_BLOCK = 64
"""Size of a block while an observer wants to see the steps."""


_TIMES = {stage: f"{stage.name.lower()}_time" for stage in STAGES}

NEVER = sys.maxsize
"""Number of a step that is never reached."""

COUNTED = "counted"
"""Reason that excludes the step of the first FLOP count, the same step on all ranks."""

RECOUNTED = "recounted"
"""Reason that excludes a step in which FLOPs are counted after the first count, for example for a new shape.

Ranks may meet the shape at different steps, so windows include the step.
"""

PROFILED = "profiled"
"""Reason that excludes a step in which a rank runs torch.profiler, the same steps on all ranks."""


class StepFlops(NamedTuple):
    """FLOPs of an optimizer step, and how long they take at peak."""

    model_flops: int
    hardware_flops: int
    ideal_seconds: float | None = None
    """Seconds that the model's work would take if each number format ran at its own peak. None: unknown."""


class Step(NamedTuple):
    """A finished optimizer step."""

    number: int
    """The trainer's count after the step."""
    excluded: str | None
    """Reason why the step is in no row; None: the step is in a row."""
    samples: int | None
    tokens: int | None
    useful_tokens: Any
    """Elements that the mask keeps, as in `Batch.useful_tokens`."""
    effort: StepFlops | None
    """FLOPs of the step; None: unknown."""
    pause_seconds: float
    """Seconds of garbage collection, by the host's clock."""
    longest_pause: float
    seconds: Sequence[float] | None
    """Seconds by stage; None: the times were lost."""


class Columns(NamedTuple):
    """Finished steps in columns of equal length. Handling a block column by column is cheapest."""

    number: Sequence[int]
    excluded: Sequence[str | None]
    samples: Sequence[int | None]
    tokens: Sequence[int | None]
    useful_tokens: Sequence[Any]
    effort: Sequence[StepFlops | None]
    pause_seconds: Sequence[float]
    longest_pause: Sequence[float]
    step_seconds: Sequence[float | None]
    """Sum of the stages of each step; None: the times were lost."""
    stages: Sequence[Sequence[Any]]
    """One column for each of `STAGES`: seconds per step, or None if the times were lost."""

    @classmethod
    def of(cls, steps: Sequence[Step]) -> "Columns":
        """Put a non-empty list of steps into columns."""
        *columns, seconds = zip(*steps, strict=True)
        lost = (None,) * len(STAGES)
        stages = [*zip(*[stages or lost for stages in seconds], strict=True)]
        return cls._make([*columns, [stages and sum(stages) for stages in seconds], stages])

    @classmethod
    def joined(cls, blocks: Sequence["Columns"]) -> "Columns":
        """Join a non-empty list of blocks of steps."""
        if len(blocks) == 1:
            return blocks[0]
        *columns, stages = zip(*blocks, strict=True)
        return cls._make([*map(_one_column, columns), [*map(_one_column, zip(*stages, strict=True))]])

    @property
    def rows(self) -> list[Step]:
        """Return the steps as a list of `Step`."""
        *columns, times, stages = self
        seconds = zip(*stages, strict=True)
        known = [None if time is None else stages for time, stages in zip(times, seconds, strict=True)]
        return [*map(Step._make, zip(*columns, known, strict=True))]

    @property
    def included(self) -> "Columns":
        """Return the steps that are in rows."""
        return self.only([reason is None for reason in self.excluded]) if any(self.excluded) else self

    def cut(self, start: int, stop: int | None = None) -> "Columns":
        """Return the steps with indices from `start` to before `stop`."""
        return self._each(lambda column: column[start:stop])

    def only(self, wanted: Sequence[bool]) -> "Columns":
        """Return the selected steps."""
        return self._each(lambda column: [*compress(column, wanted)])

    def _each(self, change: Callable[[Sequence[Any]], Sequence[Any]]) -> "Columns":
        *columns, stages = self
        return Columns._make([*map(change, columns), [*map(change, stages)]])


def _one_column(parts: Sequence[Sequence[Any]]) -> list[Any]:
    return [*chain.from_iterable(parts)]


class Totals:
    """Sums over steps. If an amount is unknown for a step, its sum is unknown."""

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
        """Number of steps whose tokens are unknown, or not known yet."""
        self.useful_tokens: Any = 0
        self.effort = StepFlops(0, 0, 0.0)
        """FLOPs of the steps with known FLOPs. The next two fields cover the same steps."""
        self.effort_steps = 0
        self.effort_seconds = 0.0
        self.pause_seconds = 0.0
        self.longest_pause = 0.0

    @property
    def tokens(self) -> int | None:
        """Tokens of all steps; None if the tokens of a step are unknown."""
        return None if self.untold_steps else self.known_tokens

    def tell_tokens(self, tokens: int) -> None:
        """Add the tokens of a step whose tokens were unknown before."""
        self.known_tokens += tokens
        self.untold_steps -= 1

    @property
    def step_seconds(self) -> float:
        """Seconds of all steps."""
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
        self._add_flops(steps)
        self.pause_seconds += sum(steps.pause_seconds)
        self.longest_pause = max(self.longest_pause, *steps.longest_pause)

    def _add_flops(self, steps: Columns) -> None:
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
        """Add the sums over other steps."""
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
        """Wait for numbers that the device still computes. Called for rows and summaries only."""
        if self.useful_tokens is not None:
            self.useful_tokens = int(self.useful_tokens)


def plus(*amounts: Any) -> Any:
    """Return the sum; None if an amount is None.

    >>> plus(1, 2, 3), plus(1, None)
    (6, None)
    """
    return None if any([amount is None for amount in amounts]) else sum(amounts)


def added(one: Amounts, other: Amounts) -> Amounts:
    """Return the sum of two amounts."""
    return Amounts(samples=plus(one.samples, other.samples), tokens=plus(one.tokens, other.tokens))


def alike(column: Sequence[Any]) -> bool:
    """Return True if all values of a non-empty column are equal.

    >>> alike([1, 1]), alike([1, 2])
    (True, False)
    """
    return column[0] == column[-1] and column.count(column[0]) == len(column)


def sum_of(amounts: Sequence[Any], start: Any = 0) -> Any:
    """Return the sum of numbers that are on no device; None if a number is None.

    >>> sum_of([1, 2, 3]), sum_of([1, None])
    (6, None)
    """
    return None if start is None or None in amounts else sum(amounts, start)


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownParts:
    """Parts of a step that the fit measures, so that metrics can show them."""

    gc_timed: bool
    """True: garbage collections are measured."""
    gc_staged: bool
    """True: the time of collections is a separate stage. On a device's clock, collections are no stage."""
    waits_timed: bool
    """True: waits in collectives are measured. On a device's clock, these are waits of the stream that trains."""
    staged: bool = True
    """False: the device computes asynchronously, and has no clock. Then only whole steps have times."""
    processes: int
    """Number of processes that train. If there are several, the windows of all ranks give the rates of the job."""
    devices: float | None
    """Number of devices that work on the samples of this process: the devices of this rank and of the ranks that share
    its samples. None: it is unknown which ranks share samples."""

    def stages(self, seconds: Sequence[float]) -> list[tuple[Stage, str]]:
        """Return the stages of some steps, each with the name of its time in metrics and journal.

        A stage that was never entered is left out, because the trainer may have run the stage without a call that we
        watch.
        """
        timed = {Stage.GC: self.gc_staged, Stage.COMMUNICATION: self.waits_timed}  # 0 is then a measured time
        shown = STAGES if self.staged else ()
        return [(stage, _TIMES[stage]) for stage in shown if timed.get(stage) or isinstance(seconds[stage], float)]


def record(steps: Columns, shown: KnownParts) -> Steps:
    """Make the journal's record of steps."""
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
