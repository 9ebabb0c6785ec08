"""Finished steps in three forms: single steps (`Step`), columns (`Columns`) and sums (`Totals`)."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, NamedTuple

from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.records.fit_records import Steps

UNSEEN: float = 0
"""Seconds of a stage that was never entered: the integer 0. The seconds of a stage that was entered are a float."""

BLOCK = 256
"""Maximum number of steps that are kept one by one. Kept steps are added up about once a second, and as soon as there
are `BLOCK` kept steps."""

WATCHED_BLOCK = 64
"""Value that replaces `BLOCK` while an observer wants `steps_measured` to be called."""


_TIMES = {stage: f"{stage.name.lower()}_time" for stage in STAGES}

NEVER = sys.maxsize
"""Number of a step that is never reached."""

COUNTED = "counted"
"""Reason for excluding the step in which FLOPs are counted for the first time. All ranks exclude the same step."""

RECOUNTED = "recounted"
"""Reason for excluding a step in which FLOPs are counted again, for example for a new shape.

Windows still include a recounted step, because ranks may recount FLOPs at different steps.
"""

PROFILED = "profiled"
"""Reason for excluding a step in which a rank runs torch.profiler. All ranks exclude the same steps."""


SUSPENDED = "suspended"
"""Reason for excluding a step during which the whole process was suspended, for example by SIGSTOP."""


class StepFlops(NamedTuple):
    """FLOPs of an optimizer step, and the seconds that the device would need at its peak speed."""

    model_flops: int
    hardware_flops: int
    ideal_seconds: float | None = None
    """Seconds that `model_flops` take if each number format, such as bfloat16, runs at its peak. None: unknown."""


class Step(NamedTuple):
    """A finished optimizer step."""

    number: int
    """The trainer's count of optimizer steps at the end of this step."""
    excluded: str | None
    """Reason why metrics leave out the step. None means that metrics include the step."""
    samples: int | None
    tokens: int | None
    useful_tokens: Any
    """Number of tokens that the attention mask keeps, as in `Batch.useful_tokens`."""
    effort: StepFlops | None
    """FLOPs of the step; None: unknown."""
    pause_seconds: float
    """Seconds of garbage collection, by the host's clock."""
    longest_pause: float
    seconds: Sequence[float] | None
    """Seconds of each stage, in the order of `STAGES`. None means that the step's times were lost."""


class Columns(NamedTuple):
    """Finished steps in columns of equal length. Adding up whole columns is faster than adding up step by step."""

    number: Sequence[int]
    excluded: Sequence[str | None]
    samples: Sequence[int | None]
    tokens: Sequence[int | None]
    useful_tokens: Sequence[Any]
    effort: Sequence[StepFlops | None]
    pause_seconds: Sequence[float]
    longest_pause: Sequence[float]
    step_seconds: Sequence[float | None]
    """Seconds of each step: the sum of its stages. None stands for a step whose times were lost."""
    stages: Sequence[Sequence[Any]]
    """One column for each stage in `STAGES`, with the stage's seconds in each step. None: the times were lost."""

    @classmethod
    def of(cls, steps: Sequence[Step]) -> "Columns":
        *columns, seconds = zip(*steps, strict=True)
        lost = (None,) * len(STAGES)
        stages = [*zip(*[stages or lost for stages in seconds], strict=True)]
        return cls._make([*columns, [stages and sum(stages) for stages in seconds], stages])

    @classmethod
    def joined(cls, blocks: Sequence["Columns"]) -> "Columns":
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
        return self.only([reason is None for reason in self.excluded]) if any(self.excluded) else self

    def cut(self, start: int, stop: int | None = None) -> "Columns":
        """Return the steps from index `start` up to, but not including, index `stop`."""
        return self._each(lambda column: column[start:stop])

    def only(self, wanted: Sequence[bool]) -> "Columns":
        """Return the steps for which `wanted` is True."""
        return self._each(lambda column: [*compress(column, wanted)])

    def _each(self, change: Callable[[Sequence[Any]], Sequence[Any]]) -> "Columns":
        *columns, stages = self
        return Columns._make([*map(change, columns), [*map(change, stages)]])


def _one_column(parts: Sequence[Sequence[Any]]) -> list[Any]:
    return [*chain.from_iterable(parts)]


class Totals:
    """Sums over steps.

    If the samples of any step are unknown, the sum of samples is unknown. If the tokens of any step are unknown, the
    sum of tokens is unknown.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.seconds: list[float] = [UNSEEN] * len(STAGES)
        self.samples: int | None = 0
        self.known_tokens = 0
        self.untold_steps = 0
        """Number of steps whose tokens are unknown, or not known yet."""
        self.useful_tokens: Any = 0
        self.effort = StepFlops(0, 0, 0.0)
        """Sum of the FLOPs over all steps whose FLOPs are known. `effort_steps` and `effort_seconds` cover only steps
        whose FLOPs are known."""
        self.effort_steps = 0
        self.effort_seconds = 0.0
        self.pause_seconds = 0.0
        self.longest_pause = 0.0

    @property
    def tokens(self) -> int | None:
        """Tokens of all steps. None means that the tokens of at least one step are unknown."""
        return None if self.untold_steps else self.known_tokens

    def tell_tokens(self, tokens: int) -> None:
        self.known_tokens += tokens
        self.untold_steps -= 1

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds)

    def add(self, steps: Columns) -> None:
        """Add steps whose seconds are known."""
        if not steps.number:
            return
        self.add_amounts(steps)
        self.seconds = [sum(column, total) for column, total in zip(steps.stages, self.seconds, strict=True)]
        if self.useful_tokens is not None:
            self.useful_tokens = plus(self.useful_tokens, *steps.useful_tokens)
        self._add_flops(steps)
        self.pause_seconds += sum(steps.pause_seconds)
        self.longest_pause = max(self.longest_pause, *steps.longest_pause)

    def add_amounts(self, steps: Columns) -> None:
        """Add the number, the samples and the tokens of steps. Leave out their seconds, which may be unknown."""
        self.steps += len(steps.number)
        self.samples = sum_of(steps.samples, self.samples)
        self.known_tokens += sum(filter(None, steps.tokens))
        self.untold_steps += steps.tokens.count(None)

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
        """Add the sums in `other`. No step may be in both `Totals`."""
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
        """Wait until the device has computed the number of useful tokens. Only rows and summaries call `settle`."""
        if self.useful_tokens is not None:
            self.useful_tokens = int(self.useful_tokens)


def plus(*amounts: Any) -> Any:
    """Return the sum of the amounts, or None if an amount is None.

    >>> plus(1, 2, 3), plus(1, None)
    (6, None)
    """
    return None if any([amount is None for amount in amounts]) else sum(amounts)


def alike(column: Sequence[Any]) -> bool:
    """Return True if all values of a non-empty column are equal.

    >>> alike([1, 1]), alike([1, 2])
    (True, False)
    """
    return column[0] == column[-1] and column.count(column[0]) == len(column)


def sum_of(amounts: Sequence[Any], start: Any = 0) -> Any:
    """Return the sum of plain Python numbers, or None if a number is None.

    >>> sum_of([1, 2, 3]), sum_of([1, None])
    (6, None)
    """
    return None if start is None or None in amounts else sum(amounts, start)


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownParts:
    """Says which parts of a step are measured. Metrics show only measured parts."""

    gc_timed: bool
    """True if garbage collections are measured."""
    gc_staged: bool
    """True if the time of garbage collections is a separate stage. With a device timeline, `gc_staged` is False."""
    waits_timed: bool
    """True if waits in collectives are measured. A device timeline measures only waits of the training stream."""
    staged: bool = True
    """False if the device computes asynchronously and can't report times. If `staged` is False, only whole steps have
    times."""
    processes: int
    """Number of processes that train. If several processes train, the rates of the job come from windows, which hold
    sums over all ranks."""
    devices: float | None
    """Number of devices that work on the samples of this process. This number includes devices of other ranks that
    train on the same samples, as under tensor parallelism. None: it is unknown which ranks share samples."""

    def stages(self, seconds: Sequence[float]) -> list[tuple[Stage, str]]:
        """Return the stages that were timed. Each stage comes with the name that its time has in metrics and journal.

        A stage that was never entered is left out, because the trainer may run the stage unnoticed.
        """
        timed = {Stage.GC: self.gc_staged, Stage.COMMUNICATION: self.waits_timed}  # 0 is then a measured time
        shown = STAGES if self.staged else ()
        return [(stage, _TIMES[stage]) for stage in shown if timed.get(stage) or isinstance(seconds[stage], float)]


def record(steps: Columns, shown: KnownParts) -> Steps:
    """Return the journal record of these steps."""
    times = steps.stages
    if any(steps.excluded) and None in steps.step_seconds:
        times = [[time for time in stage if time is not None] for stage in times]
    stages: dict[str, Any] = {
        name: tuple(steps.stages[stage]) for stage, name in shown.stages([sum(stage) for stage in times])
    }
    flops = tuple([effort and effort.model_flops for effort in steps.effort])
    return Steps(
        step=tuple(steps.number),
        step_time=tuple(steps.step_seconds),
        model_flops=flops if any(steps.effort) else (),
        samples=tuple(steps.samples),
        tokens=tuple(steps.tokens),
        excluded=tuple(steps.excluded),
        **stages,
    )
