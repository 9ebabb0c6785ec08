"""Account of a fit's wall time: each second belongs to one part."""

from collections import Counter

from perf_callbacks.kernel.engine.ledger import Ledger
from perf_callbacks.kernel.engine.steps import COUNTED, RECOUNTED, Totals

STARTUP, FIRST_STEP, FLOP_COUNTING, STEPS = "startup", "first_step", "flop_counting", "steps"
EVALUATION, CHECKPOINT, OWN_WORK, OTHER = "evaluation", "checkpoint", "own_work", "other"

PARTS = (STARTUP, FIRST_STEP, FLOP_COUNTING, STEPS, EVALUATION, CHECKPOINT, OWN_WORK, OTHER)
"""Parts of a fit's wall time, in the order in which they are shown."""

GENERATION, REWARDS = "generation", "rewards"
"""Parts of the stage `other` that a trainer names."""

BEGINNING = ("first", "restart")
"""Reasons that exclude the first step of a fit from rows."""


class Account:
    """Times of one fit outside of steps. `parts` splits the wall time into these times and the steps."""

    def __init__(self) -> None:
        self.began = 0.0
        self.before_seconds = 0.0
        """Time from the trainer's first call of the callback until measuring began."""
        self.startup_seconds = 0.0
        """Time until the callback was set up. The time of the first step includes it."""
        self.own_seconds = 0.0
        """Time that the callback took during steps and subtracted from the steps."""

        self.other_seconds: dict[str, float] = {}
        """Seconds of the named parts of the stage `other`, in steps that are in rows."""
        self.span_seconds: dict[str, float] = {}
        self.span_counts: Counter[str] = Counter()

    def add_span(self, kind: str, seconds: float) -> None:
        """Add an evaluation, a checkpoint or the like."""
        self.span_seconds[kind] = self.span_seconds.get(kind, 0.0) + seconds
        self.span_counts[kind] += 1

    def add_other(self, name: str, seconds: float) -> None:
        """Add to a named part of the stage `other`."""
        self.other_seconds[name] = self.other_seconds.get(name, 0.0) + seconds

    def started(self, now: float) -> None:
        """Store the time until the callback was set up."""
        self.startup_seconds = now - self.began

    def parts(self, now: float | None, included: Totals, ledger: Ledger) -> dict[str, float]:
        """Split the wall time so far into parts; empty if `now` is None.

        A step in which FLOPs are counted adds the mean step time to `steps`, and the rest to `flop_counting`.
        """
        if now is None:
            return {}
        excluded = ledger.excluded_seconds
        first = sum(excluded.get(reason, 0.0) for reason in BEGINNING)
        counts = ledger.excluded[COUNTED] + ledger.excluded[RECOUNTED]
        usual = included.step_seconds / included.steps if included.steps else 0.0
        counting = max(0.0, excluded.get(COUNTED, 0.0) + excluded.get(RECOUNTED, 0.0) - counts * usual)
        parts = {
            STARTUP: self.before_seconds + self.startup_seconds,
            FIRST_STEP: max(0.0, first - self.startup_seconds),
            FLOP_COUNTING: counting,
            STEPS: included.step_seconds + sum(excluded.values()) - first - counting,
            EVALUATION: 0.0,
            CHECKPOINT: 0.0,
            **self.span_seconds,
            OWN_WORK: self.own_seconds,
        }
        return parts | {OTHER: max(0.0, self.before_seconds + now - self.began - sum(parts.values()))}
