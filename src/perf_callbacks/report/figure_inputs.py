"""The values of a run from which the report's charts and tables are computed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf_callbacks.kernel.plural import plural
from perf_callbacks.kernel.records.machine_records import Memory, Use
from perf_callbacks.kernel.records.rank_records import Stall
from perf_callbacks.report import charts, profile_section, profile_text, units
from perf_callbacks.report.events import events
from perf_callbacks.report.explanation import Value, explanation
from perf_callbacks.report.heat_map import CELLS
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.layout import clean, listed
from perf_callbacks.report.series import MOST_DRAWN, SLOW, Axis, Outlier, StepSeries
from perf_callbacks.report.tiles import excluded
from perf_callbacks.report.units import duration, percent, size
from perf_callbacks.report.work_rate import WorkRate


@dataclass(frozen=True, slots=True)
class FigureInputs:
    """A fit, and the values that the charts of the page show."""

    fit: FitHistory
    drawn: StepSeries
    slow: Sequence[Outlier]
    usual: Mapping[int, Mapping[str, float]]
    work: WorkRate

    def explained(self, headings: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
        """Return the explanations by the figure's name. A chart has no headings.

        If impossible values in a journal keep a figure from being calculated, its explanation lists no inputs.
        """
        made = {
            "steps": self._steps,
            "rate": self.work.values,
            "stages": self._stages,
            "marks": self._marks,
            "account": self._account,
            "peak": self._peak,
            "heat": self._heat,
            "profile_time": self._profiles,
            "memory": self._memory,
            "Load": self._use,
            "Memory": self._use,
            "findings": self._findings,
            "stragglers": self._stragglers,
            "stalls": self._stalls,
            "worst": self._worst,
            "ranks": self._medians,
            "products": self._count,
            "phases": self._count,
            "uncounted": self._count,
        }
        explanations = {}
        for name, columns in headings.items():
            try:
                values = [*made[name]()] if name in made else []
            except (ArithmeticError, LookupError, ValueError):
                values = []
            equation = self.work.equation if name == "rate" else self._hfu() if name == "peak" else ""
            uncounted = self.work.uncounted if name in {"rate", "peak", "phases"} else ""
            explanations[name] = explanation(name, values, equation=equation, uncounted=uncounted, headings=columns)
        return explanations

    @property
    def _ranks(self) -> str:
        ranks = sorted(self.fit.ranks)
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks):,}: {listed(ranks)}"

    def _steps(self) -> Iterator[Value]:
        axis = self.drawn.axis
        yield "points", f"{axis.count:,}, each of {plural(axis.width, 'step')}"
        yield "ranks", self._ranks
        yield "steps in the mean", f"{self.drawn.steps:,}"
        yield excluded(self.fit, self.drawn)
        limit = max([SLOW * medians.get("step_time", 0.0) for medians in self.usual.values()], default=0.0)
        most = ", the slowest" if len(self.slow) == MOST_DRAWN else ""
        yield "slow steps", f"{len(self.slow):,}{most}, longer than {duration(limit)}: {SLOW:g} x the median"

    def _stages(self) -> Iterator[Value]:
        yield "time of all steps", duration(self.drawn.seconds)
        for name, seconds in self.drawn.stage_seconds.items():
            yield name.removesuffix("_time"), f"{duration(seconds)}, {percent(seconds / self.drawn.seconds)}"

    def _marks(self) -> Iterator[Value]:
        marks = events(self.fit, self.drawn.axis.within)
        for lane in dict.fromkeys(event.lane for event in marks):
            number = sum(event.lane == lane for event in marks)
            yield lane, f"{number:,}" + (", the longest" if number == MOST_DRAWN else "")

    def _account(self) -> Iterator[Value]:
        parts = charts.wall_parts(self.fit.summary)
        wall = sum(seconds for _, seconds, _ in parts)
        yield from [(name, f"{took}, {percent(seconds / wall)}") for name, seconds, took in parts]

    def _hfu(self) -> str:
        count, mfu = self.work.count, self.work.mfu
        if count is None or mfu is None or count.model_flops <= 0:
            return ""
        ratio = count.hardware_flops / count.model_flops
        low = self.work.at_least
        return f"HFU {low}{percent(mfu * ratio)} = MFU {low}{percent(mfu)} x {ratio:.3g}"

    def _peak(self) -> Iterator[Value]:
        yield from self.work.values()
        count = self.work.count
        if count is not None:
            yield "executed FLOPs of a step", f"{units.count(count.hardware_flops)} FLOPs, in step {count.step:,}"

    def _heat(self) -> Iterator[Value]:
        width = Axis([self.fit], CELLS, self.drawn.axis.within).width
        yield "ranks", self._ranks
        yield "a cell", f"{width:,} steps of a rank"

    def _profiles(self) -> Iterator[Value]:
        for rank, _, profile in profile_section.found(self.fit):
            busy = f"{duration(profile.busy_seconds)} busy of {duration(profile.span_seconds)}"
            yield profile_text.title(rank, profile), f"{busy}, {profile.kernels:,} kernels or operations"

    def _memory(self) -> Iterator[Value]:
        memory: Memory | None = self.fit.first[-1].last(Memory)
        if memory is not None:
            yield "step", f"{memory.step:,}"
            yield "device", memory.device
            yield "activations and temporary memory", memory.source or ""
            yield "peak", "" if memory.peak_gb is None else size(memory.peak_gb)

    def _use(self) -> Iterator[Value]:
        uses: list[Use] = [use for attempt in self.fit.first for use in attempt.records(Use)]
        if uses:
            yield "records", f"{len(uses):,}, from step {uses[0].step:,} to {uses[-1].step:,}"

    def _findings(self) -> Iterator[Value]:
        summary = self.fit.hang or self.fit.summary
        wall = 0.0 if summary is None else sum(summary.wall_seconds.values())
        if summary is None or wall <= 0:
            return
        after = wall - summary.wall_seconds.get("startup", 0.0)
        yield "wall time after startup", duration(after)
        yield "measured steps", f"{summary.included_steps:,} of {summary.steps:,}"
        for finding in summary.findings:
            if finding.share is not None:
                low = "" if finding.low is None else f", at least {percent(finding.low)}"
                saved = duration(finding.share * after) if finding.cause != "startup" else "part of all wall time"
                yield clean(finding.cause), f"{percent(finding.share)}: {saved}{low}"

    def _stragglers(self) -> Iterator[Value]:
        summary = self.fit.summary
        if summary is not None and summary.stragglers is not None:
            stragglers = summary.stragglers
            yield "compared steps", f"{stragglers.steps:,}, {duration(stragglers.seconds)}"
            for cause, seconds in stragglers.seconds_by_cause.items():
                yield clean(cause), duration(seconds)

    def _stalls(self) -> Iterator[Value]:
        number = sum(len(attempt.records(Stall)) for _, attempt in self.fit.attempts)
        yield "records", f"{number:,} of {len(self.fit.ranks):,} ranks"
        yield "stall_after", clean(self.fit.run.config.get("stall_after"))

    def _worst(self) -> Iterator[Value]:
        yield "slow steps", f"{len(self.slow):,}, longer than {SLOW:g} x the median of their rank"
        for rank, medians in [*sorted(self.usual.items())][:8]:
            if "step_time" in medians:
                yield f"median of rank {rank}", duration(medians["step_time"])

    def _medians(self) -> Iterator[Value]:
        yield "ranks", self._ranks
        yield excluded(self.fit, self.drawn)

    def _count(self) -> Iterator[Value]:
        count = self.work.count
        if count is None:
            return
        yield "counted step", f"{count.step:,}, {clean(count.source)}" + ("" if count.whole_step else ", in part")
        yield "model FLOPs", f"{units.count(count.model_flops)} FLOPs"
        yield "executed FLOPs", f"{units.count(count.hardware_flops)} FLOPs"
        if count.coverage is not None:
            yield "weights in counted products", percent(count.coverage)
