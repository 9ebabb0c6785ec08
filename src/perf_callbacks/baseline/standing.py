"""Comparison of a run with its baseline: the change of the step time, and the versions and stages that changed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from perf_callbacks.flops.by_shape.shape_counts import SAME
from perf_callbacks.kernel.records.shares import MAJORITY, NOTABLE
from perf_callbacks.report import machine_load
from perf_callbacks.report.batch_means import Change, Estimate, change_between_runs
from perf_callbacks.report.comparability import SAME_LENGTH
from perf_callbacks.report.layout import MOST_NAMES, clean
from perf_callbacks.report.run_figures import RunFigures
from perf_callbacks.report.units import duration

LARGE_STAGE = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineResult:
    """Result for a run that is surely slower or faster than its baseline."""

    change: Change
    """Relative change of the step time, with its 99 % interval."""
    runs: int
    """Number of runs in the baseline."""
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The newest baseline run's version and the current one, of packages whose current version no baseline run had."""
    stages: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Seconds per step in the baseline and now, of each stage that changed much."""

    @property
    def slower(self) -> bool:
        return self.change.change > 0


def against_runs(run: RunFigures, baseline: Sequence[RunFigures]) -> BaselineResult | None:
    """None if chance or the machine's load may explain the difference, or with fewer than two undisturbed runs."""
    if _seconds(run) is None:
        return None
    comparable = [figures for figures in baseline if _seconds(figures) is not None and alike(figures, run)]
    kept = [
        comparable[place]
        for place in machine_load.undisturbed([[figures.load for figures in comparable], [run.load]])[0]
    ]
    if len(kept) < 2:  # noqa: PLR2004 two runs have a spread
        return None
    change = change_between_runs([_estimate(figures) for figures in kept], [_estimate(run)])
    longer = math.log1p(change.change)
    if abs(longer) < math.log1p(NOTABLE) or change.low <= 0 <= change.high:
        return None
    effect = machine_load.effect([figures.load for figures in kept], [run.load])
    if longer * effect > 0 and abs(effect) >= MAJORITY * abs(longer):
        return None
    return BaselineResult(change=change, runs=len(kept), versions=_versions(run, kept), stages=_stages(run, kept))


def line(result: BaselineResult) -> str:
    moved = result.change
    share = f"{100 * abs(moved.change):.1f} % {'slower' if result.slower else 'faster'}"
    ends = sorted([abs(moved.low), abs(moved.high)])
    runs = f"last {result.runs} undisturbed runs of this program"
    causes = [f"{clean(name)} {clean(before)} -> {clean(now)}" for name, (before, now) in result.versions.items()]
    others = len(causes) - MOST_NAMES
    causes = [*causes[:MOST_NAMES], *([f"{others} other packages"] if others > 0 else [])]
    causes += [
        f"{name.removesuffix('_time')} {duration(before)} -> {duration(now)}"
        for name, (before, now) in result.stages.items()
    ]
    why = f": {', '.join(causes)}" if causes else ""
    return f"perf_callbacks: {share} than the {runs} ({100 * ends[0]:.1f} % to {100 * ends[1]:.1f} %){why}."


def alike(first: RunFigures, second: RunFigures) -> bool:
    """Unknown values are ignored."""
    for name in ("parameters", "batch", "device", "devices", "world_size"):
        before, now = getattr(first, name), getattr(second, name)
        if before is not None and now is not None and before != now:
            return False
    for name, most in (("samples_per_second", SAME), ("tokens_per_second", SAME_LENGTH)):
        amounts = [_per_step(getattr(figures, name), figures) for figures in (first, second)]
        counts = [amount for amount in amounts if amount is not None]
        if len(counts) == len(amounts) and max(counts) - min(counts) > most * max(counts):
            return False
    return True


def _per_step(amount_per_second: float | None, run: RunFigures) -> float | None:
    seconds = _seconds(run)
    return None if amount_per_second is None or seconds is None else amount_per_second * seconds


def _seconds(run: RunFigures) -> float | None:
    seconds = run.step_seconds
    return seconds if seconds is not None and SHORTEST <= seconds <= LONGEST else None


SHORTEST, LONGEST = 1e-9, 1e9
"""Seconds that a step can take."""


def _estimate(run: RunFigures) -> Estimate:
    return Estimate(run.step_seconds or 1.0, 0.0, 2)


def _versions(run: RunFigures, baseline: Sequence[RunFigures]) -> dict[str, tuple[str, str]]:
    versions: dict[str, tuple[str, str]] = {}
    for name, now in run.versions.items():
        before = [figures.versions[name] for figures in baseline if name in figures.versions]
        if before and now not in before:
            versions[name] = (before[-1], now)
    return versions


def _stages(run: RunFigures, baseline: Sequence[RunFigures]) -> dict[str, tuple[float, float]]:
    whole = (run.step_seconds or 0.0) - fmean([figures.step_seconds or 0.0 for figures in baseline])
    stages: list[tuple[float, str, tuple[float, float]]] = []
    for name, now in run.stage_seconds.items():
        earlier = [figures.stage_seconds[name] for figures in baseline if name in figures.stage_seconds]
        times = [seconds for seconds in earlier if 0 <= seconds <= LONGEST]  # a ledger may hold any numbers
        if times and whole and (now - fmean(times)) / whole >= LARGE_STAGE:
            stages.append(((now - fmean(times)) / whole, name, (fmean(times), now)))
    return {name: pair for _, name, pair in sorted(stages, reverse=True)}
