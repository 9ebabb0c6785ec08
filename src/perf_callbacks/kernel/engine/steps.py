"""Finished steps in three forms: single steps (`Step`), columns (`Columns`) and sums (`Totals`)."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, NamedTuple

from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.records.fit_records import Steps

UNSEEN: float = 0
"""The integer of a stage that was never entered. The seconds of a stage that was entered are a float."""

BLOCK = 256
"""Most steps that are kept one by one. They are added up then, and about once a second."""

WATCHED_BLOCK = 64
"""Replaces `BLOCK` while an observer wants `steps_measured`."""


_TIMES = {stage: f"{stage.name.lower()}_time" for stage in STAGES}

NEVER = sys.maxsize

COUNTED = "counted"
"""FLOPs are counted for the first time. All ranks exclude the same step."""

RECOUNTED = "recounted"
"""FLOPs are counted again, such as for a new shape. Windows include the step: ranks may recount at different steps."""

PROFILED = "profiled"
"""A rank runs torch.profiler. All ranks exclude the same steps."""


SUSPENDED = "suspended"
"""The whole process was suspended, for example by SIGSTOP."""


class StepFlops(NamedTuple):
    """FLOPs of an optimizer step, and the seconds that the device would need at its peak speed."""

    model_flops: int
    hardware_flops: int
    ideal_seconds: float | None = None
    """Of `model_flops`, if each number format, such as bfloat16, runs at its peak. None: unknown."""


class Step(NamedTuple):
    """A finished optimizer step."""

    number: int
    """The trainer's count at the end of this step."""
    excluded: str | None
    """Why metrics leave out the step. None: they include it."""
    samples: int | None
    tokens: int | None
    useful_tokens: Any
    """Tokens that the attention mask keeps, as in `Batch.useful_tokens`."""
    effort: StepFlops | None
    pause_seconds: float
    """Of garbage collection, by the host's clock."""
    longest_pause: float
    seconds: Sequence[float] | None
    """In the order of `STAGES`. None: the step's times were lost."""


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
    stages: Sequence[Sequence[Any]]
    """One column for each stage in `STAGES`. None: the times were lost."""

    @classmethod
    def from_steps(cls, steps: Sequence[Step]) -> "Columns":
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
        *columns, times, stages = self
        seconds = zip(*stages, strict=True)
        rows = [None if time is None else stages for time, stages in zip(times, seconds, strict=True)]
        return [*map(Step._make, zip(*columns, rows, strict=True))]

    @property
    def included(self) -> "Columns":
        return self.only([reason is None for reason in self.excluded]) if any(self.excluded) else self

    def cut(self, start: int, stop: int | None = None) -> "Columns":
        return self._each(lambda column: column[start:stop])

    def only(self, wanted: Sequence[bool]) -> "Columns":
        return self._each(lambda column: [*compress(column, wanted)])

    def _each(self, change: Callable[[Sequence[Any]], Sequence[Any]]) -> "Columns":
        *columns, stages = self
        return Columns._make([*map(change, columns), [*map(change, stages)]])


def _one_column(parts: Sequence[Sequence[Any]]) -> list[Any]:
    return [*chain.from_iterable(parts)]


class Totals:
    """Sums over steps. If the samples, or tokens, of any step are unknown, their sum is unknown."""

    def __init__(self) -> None:
        self.steps = 0
        self.seconds: list[float] = [UNSEEN] * len(STAGES)
        self.samples: int | None = 0
        self.known_tokens = 0
        self.untold_steps = 0
        self.useful_tokens: Any = 0
        self.effort = StepFlops(0, 0, 0.0)
        """Over the `effort_steps` steps whose FLOPs are known, which took `effort_seconds`."""
        self.effort_steps = 0
        self.effort_seconds = 0.0
        self.pause_seconds = 0.0
        self.longest_pause = 0.0

    @property
    def tokens(self) -> int | None:
        return None if self.untold_steps else self.known_tokens

    def tell_tokens(self, tokens: int) -> None:
        self.known_tokens += tokens
        self.untold_steps -= 1

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds)

    def add(self, steps: Columns) -> None:
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
        """Add steps without their seconds, which may be unknown."""
        self.steps += len(steps.number)
        self.samples = sum_of(steps.samples, self.samples)
        self.known_tokens += sum(filter(None, steps.tokens))
        self.untold_steps += steps.tokens.count(None)

    def _add_flops(self, steps: Columns) -> None:
        efforts: list[StepFlops] = [*filter(None, steps.effort)]
        if not efforts:
            return
        seconds: Sequence[Any] = steps.step_seconds
        amounts: Iterable[Any] = zip(*efforts, strict=True)
        if alike(steps.effort):
            amounts = [[amount and amount * len(efforts)] for amount in efforts[0]]
        model, hardware, ideal = amounts
        before = self.effort
        self.effort = StepFlops(
            sum(model, before.model_flops), sum(hardware, before.hardware_flops), sum_of(ideal, before.ideal_seconds)
        )
        self.effort_steps += len(efforts)
        self.effort_seconds += sum(seconds if len(efforts) == len(seconds) else compress(seconds, steps.effort))

    def merge(self, other: "Totals") -> None:
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
        """Wait until the device has computed the useful tokens. Only rows and summaries call this."""
        if self.useful_tokens is not None:
            self.useful_tokens = int(self.useful_tokens)


def plus(*amounts: Any) -> Any:
    """Add, unless an amount is None.

    >>> plus(1, 2, 3), plus(1, None)
    (6, None)
    """
    return None if any([amount is None for amount in amounts]) else sum(amounts)


def alike(column: Sequence[Any]) -> bool:
    """Compare all values of a non-empty column.

    >>> alike([1, 1]), alike([1, 2])
    (True, False)
    """
    return column[0] == column[-1] and column.count(column[0]) == len(column)


def sum_of(amounts: Sequence[Any], start: Any = 0) -> Any:
    """Add plain Python numbers.

    >>> sum_of([1, 2, 3]), sum_of([1, None])
    (6, None)
    """
    return None if start is None or None in amounts else sum(amounts, start)


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownParts:
    """Which parts of a step are measured. Metrics show only these."""

    gc_timed: bool
    gc_staged: bool
    """False with a device timeline: garbage collections are then no stage of their own."""
    waits_timed: bool
    """A device timeline measures only waits of the training stream."""
    staged: bool = True
    """False: only whole steps have times, as the device computes asynchronously and can't report times."""
    processes: int
    """Processes that train. With several, the job's rates come from windows, which hold sums over all ranks."""
    devices: float | None
    """That share this process' samples, on other ranks too, as under tensor parallelism. None: it is unknown which."""

    def stages(self, seconds: Sequence[float]) -> list[tuple[Stage, str]]:
        """Name the timed stages. One that was never entered is left out: the trainer may run it unnoticed."""
        timed = {Stage.GC: self.gc_staged, Stage.COMMUNICATION: self.waits_timed}  # 0 is then a measured time
        shown = STAGES if self.staged else ()
        return [(stage, _TIMES[stage]) for stage in shown if timed.get(stage) or isinstance(seconds[stage], float)]


def record(steps: Columns, shown: KnownParts) -> Steps:
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
