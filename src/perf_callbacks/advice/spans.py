"""Rules `evaluation` and `checkpoint`: time outside of steps."""

import math

from perf_callbacks.advice.facts import INTERRUPTED, Facts, Measured, finding, interrupting
from perf_callbacks.kernel.engine.account import CHECKPOINT, EVALUATION
from perf_callbacks.kernel.fit.rarer import Rarer
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.shares import NOTABLE

MOST_SAVED = {EVALUATION: INTERRUPTED[1], CHECKPOINT: 1.6}
"""Most seconds saved per second of avoided spans. After a checkpoint, the operating system still writes to the disk.

Ten programs of `benchmarks/promises.py` saved 0.97 to 1.52 s per second of checkpoints, and an eleventh 1.93 s.
"""


def evaluation(facts: Facts, measured: Measured | None) -> Finding | None:
    return _rarer(EVALUATION, "Evaluations", facts, measured)


def checkpoint(facts: Facts, measured: Measured | None) -> Finding | None:
    return _rarer(CHECKPOINT, "Checkpoints", facts, measured)


def _rarer(kind: str, noun: str, facts: Facts, measured: Measured | None) -> Finding | None:
    """Advise rarer spans, with at most the share `NOTABLE` of the steps' time."""
    if measured is None or not measured.seconds or not measured.steps_seconds:
        return None
    summary = measured.summary
    seconds, count = summary.wall_seconds.get(kind, 0.0), summary.span_counts.get(kind, 0)
    rarer = math.ceil(seconds / (NOTABLE * measured.steps_seconds))
    if rarer <= 1 or count <= 1:
        return None
    apart = max(1, round(summary.steps / count))
    evidence = f"{noun} took {seconds / measured.seconds:.0%} of the run: one after every {_steps(apart)}"
    how = facts.rarer.get(kind, Rarer())
    low, share = interrupting(seconds * (1 - 1 / rarer) / measured.seconds, MOST_SAVED[kind])
    return finding(kind, share, evidence, how.written(apart * rarer, rarer), low=low)


def _steps(number: int) -> str:
    return "step" if number == 1 else f"{number:,} steps"
