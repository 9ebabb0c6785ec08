"""Splits a fit's wall time into parts, so that each second is in one part; adds up garbage collections."""

from collections import Counter, defaultdict

from perf_callbacks.kernel.engine.ledger import Ledger
from perf_callbacks.kernel.engine.marks import Pause
from perf_callbacks.kernel.engine.steps import COUNTED, PROFILED, RECOUNTED, SUSPENDED, Totals
from perf_callbacks.kernel.records import fit_records
from perf_callbacks.kernel.records.summary_parts import GcSummary

STARTUP, FIRST_STEP, FLOP_COUNTING, STEPS = "startup", "first_step", "flop_counting", "steps"
EVALUATION, CHECKPOINT, OWN_WORK, OTHER = "evaluation", "checkpoint", "own_work", "other"

GENERATION, REWARDS = "generation", "rewards"

BEGINNING = ("first", "restart")


class Account:
    """The times of one fit that are not the times of steps."""

    def __init__(self) -> None:
        self.began = 0.0
        self.before_seconds = 0.0
        """From the trainer's first call of the callback until measuring began."""
        self.startup_seconds = 0.0
        """The callback's setup after measuring had begun. The first step includes it."""
        self.stalled_seconds = 0.0
        """Of reported stalls within steps."""
        self.own_seconds = 0.0
        """Of the callback itself during steps, whose times leave it out."""

        self.other_seconds: defaultdict[str, float] = defaultdict(float)
        """By named part of the stage `OTHER`, in the included steps."""
        self.span_seconds: defaultdict[str, float] = defaultdict(float)
        self.span_counts: Counter[str] = Counter()
        """Steps after which there was a span of each kind. Two checkpoints after one step count once."""
        self._span_steps: dict[str, int] = {}

    def started(self, now: float) -> None:
        self.startup_seconds = now - self.began

    def span(self, kind: str, step: int, seconds: float) -> None:
        self.span_seconds[kind] += seconds
        self.span_counts[kind] += self._span_steps.get(kind) != step
        self._span_steps[kind] = step

    def productive(self, included: Totals, ledger: Ledger, outstanding: int) -> float:
        """Return the seconds of all steps so far, without stalls.

        The first step, and steps with FLOP counting or torch.profiler, count with the mean step time at most. Each
        `outstanding` step, whose times are still on the device, counts with the mean.
        """
        usual = included.step_seconds / included.steps if included.steps else None
        seconds = included.step_seconds + outstanding * (usual or 0.0)
        for reason, total in ledger.excluded_seconds.items():
            special = usual is not None and reason in {*BEGINNING, COUNTED, RECOUNTED, PROFILED}
            seconds += min(total, ledger.excluded[reason] * (usual or 0.0)) if special else total
        return max(0.0, seconds - self.stalled_seconds)

    def parts(self, now: float | None, included: Totals, ledger: Ledger) -> dict[str, float]:
        """Return the seconds of each part of the wall time up to `now`; nothing if `now` is None.

        A counted, profiled or suspended step adds the mean step time to `steps`, and the rest to its own part.
        """
        if now is None:
            return {}
        excluded = ledger.excluded_seconds
        first = sum(excluded.get(reason, 0.0) for reason in BEGINNING)
        counts = ledger.excluded[COUNTED] + ledger.excluded[RECOUNTED]
        usual = included.step_seconds / included.steps if included.steps else 0.0
        counting = max(0.0, excluded.get(COUNTED, 0.0) + excluded.get(RECOUNTED, 0.0) - counts * usual)
        suspended = max(0.0, excluded.get(SUSPENDED, 0.0) - ledger.excluded[SUSPENDED] * usual)
        profiling = max(0.0, excluded.get(PROFILED, 0.0) - ledger.excluded[PROFILED] * usual)
        parts = {
            STARTUP: self.before_seconds + self.startup_seconds,
            FIRST_STEP: max(0.0, first - self.startup_seconds),
            FLOP_COUNTING: counting,
            STEPS: included.step_seconds + sum(excluded.values()) - first - counting - profiling - suspended,
            EVALUATION: 0.0,
            CHECKPOINT: 0.0,
            **self.span_seconds,
            OWN_WORK: self.own_seconds + profiling,
            **({SUSPENDED: suspended} if suspended else {}),
        }
        return parts | {OTHER: max(0.0, self.before_seconds + now - self.began - sum(parts.values()))}


class Pauses:
    """Sums over the garbage collections of a fit. The checklist's full collection at startup has a sum of its own."""

    def __init__(self) -> None:
        self._collections = [0, 0, 0]
        self._seconds = self._longest = self._scheduled = self._startup = 0.0
        self._made = self._garbage = 0  # in scheduled collections

    def add(self, pause: Pause) -> None:
        if pause.ours == fit_records.STARTUP:
            self._startup += pause.seconds
            return
        self._collections[min(pause.generation, 2)] += 1
        self._seconds += pause.seconds
        if pause.ours:
            self._scheduled += pause.seconds
            self._made += pause.made
            self._garbage += pause.collected
        self._longest = max(self._longest, pause.seconds)

    def summary(self) -> GcSummary:
        return GcSummary(
            collections=tuple(self._collections),
            seconds=self._seconds,
            longest=self._longest,
            scheduled_seconds=self._scheduled,
            startup_seconds=self._startup,
            scheduled_made=self._made,
            scheduled_garbage=self._garbage,
        )
