"""Efficiency on each number of devices, with its confidence interval, and the growth of each part of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from perf_callbacks.flops.by_shape.shape_counts import SAME
from perf_callbacks.kernel.records.shares import WORTH
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.report import comparability, comparison_text, machine_load
from perf_callbacks.report.batch_means import (
    Change,
    Estimate,
    change_between_runs,
    difference_between_runs,
    mean_of_runs,
)
from perf_callbacks.report.comparability import SAME_LENGTH, Values
from perf_callbacks.report.history import Attempt
from perf_callbacks.report.machine_load import Load
from perf_callbacks.report.series import STAGES
from perf_callbacks.scaling.job_run import UNITS, JobRun

CONFIDENCE = 0.95
"""Of the efficiency's intervals. The intervals of a step's parts are 99 % intervals."""

FIELDS = ("parameters", "device", "timeline")
"""All runs must agree in them. The batch and the number of ranks may differ."""

FEW_STEPS = "Not decided: one of the runs has fewer than ten measured steps."


@dataclass(frozen=True, kw_only=True, slots=True)
class PartGrowth:
    """Growth of one stage against the baseline, in seconds of a step with the baseline's mean work per device."""

    part: str
    seconds: float
    low: float
    """Lower end of the 99 % interval."""
    high: float
    share: float | None
    """Part of the time beyond perfect scaling that this stage explains, 0 to 1; None: no time is lost."""
    excess: float
    """Growth of the gap between the slowest rank and the mean of all ranks. Negative if the gap shrank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Results of all runs on the same number of devices."""

    devices: int
    runs: int
    left_out: int
    """Runs that were left out because the machine was busy."""
    per_second: float
    per_device: float
    per_step: float
    per_step_ends: tuple[float, float]
    efficiency: float
    """Work per second and device, relative to the baseline's."""
    interval: tuple[float, float] | None
    """95 % interval; None for the baseline itself."""
    growth: tuple[PartGrowth, ...]
    """The largest growth first. Empty for the baseline, and if the growth is unknown."""
    slowest: tuple[int, float]
    """The rank that is the slowest in the most steps, and their share."""
    loads: tuple[Load, ...]

    @property
    def grown(self) -> PartGrowth | None:
        """The part that grows most; None if that is not certain, or less than 1 % of the step."""
        least = WORTH * self.per_step / self.per_device
        return next((part for part in self.growth[:1] if part.low > 0 and part.seconds >= least), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Scaling of a job over several numbers of devices."""

    unit: str
    baseline: tuple[int, ...]
    baseline_per_step: float
    """Mean samples or tokens of one device in a step of the baseline."""
    points: tuple[Point, ...]

    @property
    def weak(self) -> bool:
        """A device does the same work per step on each number of devices (weak scaling)."""
        amounts = [self.baseline_per_step, *[amount for point in self.points for amount in point.per_step_ends]]
        return max(amounts) - min(amounts) <= SAME * max(amounts)


def curve(runs: Sequence[Sequence[Attempt]], baseline: Sequence[Sequence[Attempt]] = ()) -> Curve:
    """Compare runs, each with an attempt per rank. Raise `ConfigError` if they can't be compared.

    Without a `baseline`, the runs on the fewest devices are the baseline.
    """
    groups: dict[int, list[JobRun]] = {}
    for run in sorted(map(JobRun.from_ranks, runs), key=lambda run: run.devices):
        groups.setdefault(run.devices, []).append(run)
    if not baseline and len(groups) < 2:  # noqa: PLR2004 two points make a curve
        raise ConfigError("all runs have the same number of devices, wanted several numbers, or --baseline DIR.")
    sides = [[JobRun.from_ranks(run) for run in baseline], *groups.values()] if baseline else [*groups.values()]
    # the job itself may cause waits for a CPU
    loads = [[run.compared.load._replace(no_cpu=None) for run in side] for side in sides]
    kept = [
        [side[place] for place in places] for side, places in zip(sides, machine_load.undisturbed(loads), strict=True)
    ]
    first, others = kept[0], [run for side in kept[1:] for run in side]
    unlike = _unlike(first, others)
    if unlike:
        raise ConfigError(f"{comparison_text.not_alike(unlike)}.")
    if not all(run.times for run in [*first, *others]):
        raise ConfigError(FEW_STEPS)
    unit = next((unit for unit in UNITS if all(run.per_step(unit) for run in [*first, *others])), None)
    if unit is None:
        raise ConfigError("Not decided: the samples and tokens of a run, or the ranks that share them, are unknown.")
    points = [_point(side, now, first, unit) for side, now in zip(sides, kept, strict=True)]
    return Curve(
        unit=unit,
        baseline=tuple(dict.fromkeys(run.devices for run in first)),
        baseline_per_step=_per_step(first, unit),
        points=tuple(points[1:] if baseline else points),
    )


def _point(every: Sequence[JobRun], side: Sequence[JobRun], baseline: Sequence[JobRun], unit: str) -> Point:
    rates, before = [[_rate(run, unit) for run in runs] for runs in (side, baseline)]
    changed = change_between_runs(before, rates, CONFIDENCE)
    per_device, devices = mean_of_runs(rates) or 0.0, side[0].devices
    itself, amounts = side is baseline, [run.per_step(unit) or 0.0 for run in side]
    return Point(
        devices=devices,
        runs=len(side),
        left_out=len(every) - len(side),
        per_second=per_device * devices,
        per_device=per_device,
        per_step=_per_step(side, unit),
        per_step_ends=(min(amounts), max(amounts)),
        efficiency=1 + changed.change,
        interval=None if itself else (1 + changed.low, 1 + changed.high),
        growth=() if itself else tuple(_growth(side, baseline, unit, changed)),
        slowest=max([run.slowest for run in side], key=lambda share: share[1]),
        loads=tuple([run.compared.load for run in every]),
    )


def _growth(side: Sequence[JobRun], baseline: Sequence[JobRun], unit: str, changed: Change) -> list[PartGrowth]:
    work = _per_step(baseline, unit)
    before = work / (mean_of_runs([_rate(run, unit) for run in baseline]) or 1.0)
    lost = before / (1 + changed.change) - before
    growth = []
    for part in STAGES:
        costs = [[run.cost(part, unit) for run in runs] for runs in (baseline, side)]
        known_costs = [[cost for cost in some if cost is not None] for some in costs]
        if list(map(len, known_costs)) != list(map(len, costs)):
            return []
        seconds, low, high = [work * end for end in difference_between_runs(known_costs[0], known_costs[1])]
        excess = [
            fmean([run.excess[part] * work / (run.per_step(unit) or 1.0) for run in runs]) for runs in (baseline, side)
        ]
        share = min(1.0, max(0.0, seconds / lost)) if lost > 0 else None
        growth.append(
            PartGrowth(part=part, seconds=seconds, low=low, high=high, share=share, excess=excess[1] - excess[0])
        )
    return sorted(growth, key=lambda row: row.seconds, reverse=True)


def _rate(run: JobRun, unit: str) -> Estimate:
    rate = run.rate(unit)
    if rate is None:
        raise ConfigError(FEW_STEPS)
    return rate


def _per_step(runs: Sequence[JobRun], unit: str) -> float:
    return fmean([run.per_step(unit) or 0.0 for run in runs])


def _unlike(first: Sequence[JobRun], second: Sequence[JobRun]) -> Values:
    differences = comparability.different_fields(
        [run.compared for run in first], [run.compared for run in second], FIELDS
    )
    lengths = [
        [
            tokens / samples
            for run in runs
            if (samples := run.per_step("samples")) and (tokens := run.per_step("tokens"))
        ]
        for runs in (first, second)
    ]
    every = [length for side in lengths for length in side]
    if all(lengths) and max(every) - min(every) > SAME_LENGTH * max(every):
        differences["tokens per sample"] = (fmean(lengths[0]), fmean(lengths[1]))
    return differences
