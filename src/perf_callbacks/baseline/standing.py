"""Comparison of a run with its baseline: the change of the step time, and the versions and stages that changed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from perf_callbacks.report import machine_load
from perf_callbacks.report.batch_means import Change, Estimate, change_between_runs
from perf_callbacks.report.layout import clean
from perf_callbacks.report.likeness import SAME_AMOUNT, SAME_LENGTH
from perf_callbacks.report.run_figures import RunFigures
from perf_callbacks.report.units import duration

LEAST = 0.05
"""Least relative change of the step time that is reported."""

EXPLAINED = 0.5
"""A change is not reported if the machine's load explains at least this part of the change."""

LARGE_STAGE = 0.2
"""A stage is named if it accounts for at least this part of the change."""

MOST_NAMED = 4
"""Largest number of changed package versions that the line names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Result for a run that is surely slower or faster than its baseline."""

    change: Change
    """Relative change of the step time, with its 99 % interval."""
    runs: int
    """Number of runs in the baseline."""
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Packages whose current version was not used in any run of the baseline.

    The first version is from the newest baseline run that has the package. The second version is the current version.
    """
    stages: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """For each stage that changed much: its seconds per step in the baseline, and now."""

    @property
    def slower(self) -> bool:
        """True: the run is slower than its baseline."""
        return self.change.change > 0


def standing(run: RunFigures, baseline: Sequence[RunFigures]) -> Standing | None:
    """Compare the first steps of a run with the first steps of earlier runs.

    The result is None if chance or the load of the machine may explain the difference. The result is also None if fewer
    than two comparable earlier runs were undisturbed.
    """
    if _seconds(run) is None:
        return None
    known = [one for one in baseline if _seconds(one) is not None and alike(one, run)]
    kept = [known[place] for place in machine_load.undisturbed([[one.load for one in known], [run.load]])[0]]
    if len(kept) < 2:  # noqa: PLR2004 two runs have a spread
        return None
    change = change_between_runs([_estimate(one) for one in kept], [_estimate(run)])
    longer = math.log1p(change.change)
    if abs(longer) < math.log1p(LEAST) or change.low <= 0 <= change.high:
        return None
    effect = machine_load.effect([one.load for one in kept], [run.load])
    if longer * effect > 0 and abs(effect) >= EXPLAINED * abs(longer):
        return None
    return Standing(change=change, runs=len(kept), versions=_versions(run, kept), stages=_stages(run, kept))


def line(found: Standing) -> str:
    """Return a line such as "… 32.0 % slower than the last 5 undisturbed runs …: torch 2.14 -> 2.15."."""
    moved = found.change
    share = f"{100 * abs(moved.change):.1f} % {'slower' if found.slower else 'faster'}"
    ends = sorted([abs(moved.low), abs(moved.high)])
    known = f"last {found.runs} undisturbed runs of this program"
    causes = [f"{clean(name)} {clean(before)} -> {clean(now)}" for name, (before, now) in found.versions.items()]
    more = len(causes) - MOST_NAMED
    causes = [*causes[:MOST_NAMED], *([f"{more} other packages"] if more > 0 else [])]
    causes += [
        f"{name.removesuffix('_time')} {duration(before)} -> {duration(now)}"
        for name, (before, now) in found.stages.items()
    ]
    why = f": {', '.join(causes)}" if causes else ""
    return f"perf_callbacks: {share} than the {known} ({100 * ends[0]:.1f} % to {100 * ends[1]:.1f} %){why}."


def alike(one: RunFigures, other: RunFigures) -> bool:
    """Return True if two runs have the same model, batch, device and number of ranks. Unknown values are ignored."""
    for name in ("parameters", "batch", "device", "devices", "world_size"):
        before, now = getattr(one, name), getattr(other, name)
        if before is not None and now is not None and before != now:
            return False
    for name, most in (("samples_per_second", SAME_AMOUNT), ("tokens_per_second", SAME_LENGTH)):
        amounts = [_per_step(getattr(figures, name), figures) for figures in (one, other)]
        known = [amount for amount in amounts if amount is not None]
        if len(known) == len(amounts) and max(known) - min(known) > most * max(known):
            return False
    return True


def _per_step(amount_per_second: float | None, run: RunFigures) -> float | None:
    seconds = _seconds(run)
    return None if amount_per_second is None or seconds is None else amount_per_second * seconds


def _seconds(run: RunFigures) -> float | None:
    """Return the seconds of a step, or None if the time is unknown or impossible."""
    found = run.step_seconds
    return found if found is not None and SHORTEST <= found <= LONGEST else None


SHORTEST, LONGEST = 1e-9, 1e9
"""Smallest and largest number of seconds that a step can take."""


def _estimate(run: RunFigures) -> Estimate:
    return Estimate(run.step_seconds or 1.0, 0.0, 2)


def _versions(run: RunFigures, baseline: Sequence[RunFigures]) -> dict[str, tuple[str, str]]:
    """Return the package versions that no run of the baseline has."""
    found: dict[str, tuple[str, str]] = {}
    for name, now in run.versions.items():
        before = [one.versions[name] for one in baseline if name in one.versions]
        if before and now not in before:
            found[name] = (before[-1], now)
    return found


def _stages(run: RunFigures, baseline: Sequence[RunFigures]) -> dict[str, tuple[float, float]]:
    """Return the stages that account for a large part of the change. The stage with the largest part comes first."""
    whole = (run.step_seconds or 0.0) - fmean([one.step_seconds or 0.0 for one in baseline])
    found: list[tuple[float, str, tuple[float, float]]] = []
    for name, now in run.stage_seconds.items():
        earlier = [one.stage_seconds[name] for one in baseline if name in one.stage_seconds]
        known = [seconds for seconds in earlier if 0 <= seconds <= LONGEST]  # a ledger may hold any numbers
        if known and whole and (now - fmean(known)) / whole >= LARGE_STAGE:
            found.append(((now - fmean(known)) / whole, name, (fmean(known), now)))
    return {name: pair for _, name, pair in sorted(found, reverse=True)}
