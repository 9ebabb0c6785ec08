"""Recorded run for the scaling report: work per device, time of the job, and the parts of each step."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isnan, nan
from statistics import fmean

from perf_callbacks.report.batch_means import Estimate, ratio, ratio_from_zero
from perf_callbacks.report.compared_run import ComparedRun, common_steps
from perf_callbacks.report.history import Attempt
from perf_callbacks.report.series import STAGES, WAITING

UNITS = ("samples", "tokens")
"""The first unit that is known for all runs is used."""

SUMS_UP = 0.9
"""If the stages cover less than this share of the step time, they were not timed."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """Run of a job, limited to the steps that the journals of all ranks have.

    In the backward and in collectives, the other ranks wait for the rank that itself waits least. So its stages explain
    the duration of the step. It may be another rank in each step.
    """

    compared: ComparedRun
    devices: int
    times: Sequence[float]
    """Seconds, on the rank with the largest sum of step times."""
    work: Mapping[str, Sequence[float]]
    """By unit, of one device in each step. Unknown work is NaN."""
    parts: Mapping[str, Sequence[float]]
    """Seconds by stage in each step, on the rank that waits least. Empty if stages were not timed."""
    excess: Mapping[str, float]
    """Mean seconds per step by stage, on the rank that waits least, minus the mean of all ranks."""
    slowest: tuple[int, float]

    @classmethod
    def from_ranks(cls, ranks: Sequence[Attempt]) -> "JobRun":
        common, run = common_steps(ranks), ranks[0].run
        numbers = range(len(ranks))

        def columns(name: str) -> list[list[float]]:
            return [[rank.columns[name][place] for place in places] for rank, places in zip(ranks, common, strict=True)]

        times = max(columns("step_time"), key=fsum)
        groups = 1 if run.world_size == 1 else run.data_parallel
        devices = run.devices * run.world_size
        per_device = nan if groups is None else groups / devices
        work = {unit: [per_device * fmean(amounts) for amounts in zip(*columns(unit), strict=True)] for unit in UNITS}
        # stages add up to the step, so an unknown time is 0: for example, a job of one rank has no collectives
        stages = {
            name: [[0.0 if isnan(value) else value for value in column] for column in columns(name)] for name in STAGES
        }
        critical = [
            min(numbers, key=lambda rank: fsum([stages[name][rank][place] for name in WAITING]))
            for place in range(len(times))
        ]
        parts = {name: [each[rank][place] for place, rank in enumerate(critical)] for name, each in stages.items()}
        covered = fsum([fsum(part) for part in parts.values()])
        timed = bool(times) and run.unstaged is None and covered >= SUMS_UP * fsum(times)
        excess = {name: fmean(parts[name]) - fmean(map(fmean, stages[name])) for name in STAGES} if timed else {}
        [(slowest, number)] = Counter(critical).most_common(1) or [(0, 0)]
        return cls(
            compared=ComparedRun.from_ranks(ranks),
            devices=devices,
            times=times,
            work=work,
            parts=parts if timed else {},
            excess=excess,
            slowest=(ranks[slowest].run.rank, number / max(1, len(times))),
        )

    def per_step(self, unit: str) -> float | None:
        amounts = [amount for amount in self.work[unit] if not isnan(amount)]
        return fmean(amounts) if amounts else None

    def rate(self, unit: str) -> Estimate | None:
        """Work of one device per second. None also with too few steps."""
        return ratio(*self._with_known_work(self.work[unit], self.times, unit))

    def cost(self, part: str, unit: str) -> Estimate | None:
        """Seconds of a stage per unit of work. None also with too few steps."""
        column = self.parts.get(part)
        return None if column is None else ratio_from_zero(*self._with_known_work(column, self.work[unit], unit))

    def _with_known_work(
        self, first: Sequence[float], second: Sequence[float], unit: str
    ) -> tuple[list[float], list[float]]:
        places = [place for place, amount in enumerate(self.work[unit]) if not isnan(amount)]
        return [first[place] for place in places], [second[place] for place in places]
