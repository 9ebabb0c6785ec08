"""Steps, one by one and added up."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from perf_callbacks.core.records import Steps
from perf_callbacks.core.stages import STAGES, Stage
from perf_callbacks.core.work import Effort

UNSEEN: float = 0
"""Seconds of a stage that was never entered: the integer, which the first seconds added to it turn into a float."""

BLOCK = 64
"""Steps that are kept one by one before they are added up."""


NEVER = sys.maxsize
"""A step that does not come."""

COUNTED = "counted"
"""Why the step in which FLOPs are counted, the same on all ranks, is in no row."""

RECOUNTED = "recounted"
"""Why one is in which they are counted for a new shape: ranks may meet it at different steps, so windows have it."""


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
    effort: Effort | None
    """None: nobody knows what it took."""
    pause_seconds: float
    """Garbage collection, on either timeline."""
    longest_pause: float
    seconds: Sequence[float] | None
    """By stage; None where they were lost."""


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
        self.effort = Effort(0, 0, 0.0)
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

    def add(self, steps: Sequence[Step]) -> None:
        """Add steps whose seconds are known."""
        if not steps:
            return
        self.steps += len(steps)
        self.seconds = [sum(stage) for stage in zip(self.seconds, *[step.seconds or () for step in steps], strict=True)]
        self.samples = plus(self.samples, *[step.samples for step in steps])
        self._add_tokens([step.tokens for step in steps])
        self.useful_tokens = plus(self.useful_tokens, *[step.useful_tokens for step in steps])
        self._exert(steps)
        self.pause_seconds += sum([step.pause_seconds for step in steps])
        self.longest_pause = max(self.longest_pause, *[step.longest_pause for step in steps])

    def _add_tokens(self, tokens: Sequence[int | None]) -> None:
        known = [amount for amount in tokens if amount is not None]
        self.known_tokens += sum(known)
        self.untold_steps += len(tokens) - len(known)

    def _exert(self, steps: Sequence[Step]) -> None:
        known = [(step.effort, sum(step.seconds or ())) for step in steps if step.effort is not None]
        if known:
            efforts, seconds = zip(*known, strict=True)
            self.effort = Effort(*[plus(*amounts) for amounts in zip(self.effort, *efforts, strict=True)])
            self.effort_steps += len(known)
            self.effort_seconds += sum(seconds)

    def merge(self, other: "Totals") -> None:
        """Add what others added up."""
        self.steps += other.steps
        self.seconds = [a + b for a, b in zip(self.seconds, other.seconds, strict=True)]
        self.samples = plus(self.samples, other.samples)
        self.known_tokens += other.known_tokens
        self.untold_steps += other.untold_steps
        self.useful_tokens = plus(self.useful_tokens, other.useful_tokens)
        self.effort = Effort(*[plus(*amounts) for amounts in zip(self.effort, other.effort, strict=True)])
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What of a step is known here, and so can be shown."""

    staged: bool
    """Its stages."""
    gc_timed: bool
    """The garbage collections in it."""
    gc_staged: bool
    """Their time, as a stage of its own. On a device's clock it is none."""
    processes: int
    """How many processes train: rates over all of them are known of one, and of what they tell each other."""
    devices: float | None
    """How many devices work on what this process counts: those it drives, and those of ranks that share its samples.
    None: nobody knows who shares samples."""

    def stages(self, seconds: Sequence[float]) -> list[tuple[Stage, str]]:
        """The stages of some steps, each with the name of its time in metrics and journal.

        One that was never entered is not known to be 0: a trainer may have ways of its own, which we don't see.
        """
        if not self.staged:
            return []
        seen = [stage for stage in STAGES if isinstance(seconds[stage], float) or stage is Stage.GC]
        return [(stage, f"{stage.name.lower()}_time") for stage in seen if self.gc_staged or stage is not Stage.GC]


def columns(steps: Sequence[Step], shown: Shown) -> Steps:
    """Steps as they stand in the journal."""
    number, excluded, samples, tokens, _, efforts, _, _, seconds = zip(*steps, strict=True)
    known = any(seconds)
    lost = (None,) * len(STAGES)
    by_stage = tuple(zip(*[stages or lost for stages in seconds], strict=True))
    totals = (
        [sum([time for time in stage if time is not None]) for stage in by_stage] if known else [UNSEEN] * len(STAGES)
    )
    stages: dict[str, Any] = {name: by_stage[stage] for stage, name in shown.stages(totals)}
    return Steps(
        step=number,
        step_time=tuple([stages and sum(stages) for stages in seconds]),
        model_flops=tuple([effort and effort.model_flops for effort in efforts]) if any(efforts) else (),
        samples=samples,
        tokens=tokens,
        excluded=excluded,
        **stages,
    )
