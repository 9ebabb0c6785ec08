"""A recorded run for a comparison: the columns of its steps, the machine's load, and estimates of its metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from statistics import fmean

from perf_callbacks.kernel.records.fit_records import Checklist, Run, Summary
from perf_callbacks.kernel.records.machine_records import Memory, Use
from perf_callbacks.kernel.records.summary_parts import FlopsSummary
from perf_callbacks.kernel.units import TERA
from perf_callbacks.memory.use import parts_in_gb
from perf_callbacks.report.batch_means import Estimate, quick, ratio
from perf_callbacks.report.history import STEP_COLUMNS, Attempt, possible
from perf_callbacks.report.machine_load import Load
from perf_callbacks.report.series import STAGES, included

QUICK = "quick_step_time"


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """Columns of a run's measured steps, and the records that describe the run."""

    columns: Mapping[str, Sequence[float]]
    """By name. NaN means unknown."""
    run: Run
    summary: Summary | None
    checklist: Mapping[str, str]
    memory: Mapping[str, float]
    load: Load
    """As recorded by the rank that waited longest for a CPU."""

    @classmethod
    def from_ranks(cls, ranks: Sequence[Attempt]) -> "ComparedRun":
        """The records of the first rank describe the run."""
        first = ranks[0]
        parts = [part for part in (rank.last(Memory) for rank in ranks) if part is not None]
        uses = [use.resident_gb for rank in ranks for use in rank.records(Use)]
        used = [size for size in uses if size is not None and possible(size)]
        memory = {
            f"{name}_gb": size for part in parts[:1] for name, size in parts_in_gb(part).items() if possible(size)
        }
        memory |= {"resident_gb": max(used)} if used else {}
        loads = [Load.from_summary(None if rank.summary is None else rank.summary.cpu) for rank in ranks]
        return cls(
            columns=_columns(ranks),
            run=first.run,
            summary=first.last(Summary),
            checklist={record.item: record.status for record in first.records(Checklist)},
            memory=memory,
            load=max(loads, key=lambda load: -1.0 if load.no_cpu is None else load.no_cpu),
        )

    @property
    def steps(self) -> int:
        return len(self.columns["step_time"])

    @property
    def flops(self) -> FlopsSummary | None:
        """None also if the summary has no FLOPs."""
        return None if self.summary is None else self.summary.flops

    def per_step(self, name: str) -> float | None:
        values = [value for value in self.columns[name] if not isnan(value)]
        return fmean(values) if values else None

    def estimate(self, above: str, below: str | None = None) -> Estimate | None:
        """Without `below`, divide by the number of steps. Steps with an unknown value are left out."""
        others = [1.0] * self.steps if below is None else self.columns[below]
        rows = [
            (value, other) for value, other in zip(self.columns[above], others, strict=True) if not isnan(value + other)
        ]
        return ratio([value for value, _ in rows], [other for _, other in rows])


def _tflops(run: ComparedRun) -> Estimate | None:
    estimate = run.estimate("model_flops", "step_time")
    return None if estimate is None else estimate._replace(value=estimate.value / TERA)


def _of_peak(run: ComparedRun, share: Callable[[FlopsSummary], float | None]) -> Estimate | None:
    """Scale the summary's MFU or HFU by the FLOPs per second of the compared steps."""
    flops, estimate = run.flops, run.estimate("model_flops", "step_time")
    whole = None if flops is None else share(flops)
    if flops is None or estimate is None or not whole or not flops.model_flops or not flops.seconds:
        return None
    return estimate._replace(value=estimate.value * whole / (flops.model_flops / flops.seconds))


ESTIMATORS: Mapping[str, Callable[[ComparedRun], Estimate | None]] = {
    "step_time": partial(ComparedRun.estimate, above="step_time"),
    QUICK: lambda run: quick(run.columns["step_time"]),
    "samples/s": partial(ComparedRun.estimate, above="samples", below="step_time"),
    "tokens/s": partial(ComparedRun.estimate, above="tokens", below="step_time"),
    "tflops": _tflops,
    "mfu": partial(_of_peak, share=lambda flops: flops.mfu),
    "hfu": partial(_of_peak, share=lambda flops: flops.hfu),
    **{name: partial(ComparedRun.estimate, above=name) for name in STAGES},
}
"""Rates are per rank."""


def _columns(ranks: Sequence[Attempt]) -> dict[str, list[float]]:
    """The time of a step is that of the slowest rank. All other values are means over the ranks."""
    common = common_steps(ranks)
    columns = {}
    for name in STEP_COLUMNS:
        values = [[rank.columns[name][place] for place in places] for rank, places in zip(ranks, common, strict=True)]
        together = max if name == "step_time" else fmean
        columns[name] = values[0] if len(ranks) == 1 else [*map(together, zip(*values, strict=True))]
    return columns


def common_steps(ranks: Sequence[Attempt]) -> list[list[int]]:
    """For each rank, the indices of those steps that all ranks measured."""
    places = [{rank.step[place]: place for place in included(rank, 0, len(rank.step))} for rank in ranks]
    common = [step for step in places[0] if all([step in others for others in places[1:]])]
    return [[where[step] for step in common] for where in places]
