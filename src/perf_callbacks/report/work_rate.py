"""Model FLOPs per second of a fit, the peak of its device, and the sources of both numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.summary_parts import FlopsSummary
from perf_callbacks.report import units
from perf_callbacks.report.explanation import Value
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.layout import clean, few
from perf_callbacks.report.series import StepSeries
from perf_callbacks.report.units import duration, percent, speed


@dataclass(frozen=True, slots=True)
class WorkRate:
    """Model FLOPs in the drawn steps of all ranks, and one device's peak."""

    drawn: StepSeries
    devices: int
    peak: float | None
    """Of one device in FLOPs per second."""
    count: Flops | None
    """The latest of a whole step, or else of a part."""
    summary: FlopsSummary

    @classmethod
    def from_fit(cls, fit: FitHistory, drawn: StepSeries) -> "WorkRate":
        summary = fit.summary
        counts: list[Flops] = [count for attempt in fit.first for count in attempt.records(Flops)]
        return cls(
            drawn=drawn,
            devices=max(1, fit.run.devices),
            peak=fit.first[-1].peak_flops_per_second,
            count=next((count for count in reversed(counts) if count.whole_step), counts[-1] if counts else None),
            summary=(None if summary is None else summary.flops) or FlopsSummary(),
        )

    @property
    def per_second(self) -> float | None:
        return self.drawn.flops / self.drawn.flops_seconds / self.devices if self.drawn.flops_seconds > 0 else None

    @property
    def mfu(self) -> float | None:
        return None if self.per_second is None or not self.peak else self.per_second / self.peak

    @property
    def at_least(self) -> str:
        """The sign "≥ " if FLOPs are a lower bound."""
        return "≥ " if self.count is not None and self.count.lower_bound else ""

    @property
    def peak_value(self) -> str:
        """With the number format for which it holds."""
        dtype = f", {clean(self.summary.dtype)}" if self.summary.dtype else ""
        return f"{speed(self.peak)}{dtype}" if self.peak else ""

    @property
    def peak_source(self) -> str:
        source = self.summary.peak_source
        if not self.peak:
            return ""
        if not source:
            return "the last row that a logger got; no summary names the source"
        if self.summary.peak_measured:
            return source
        return f"{'set as' if source.startswith('peak_tflops=') else 'table of peaks, dense:'} {source}"

    @property
    def equation(self) -> str:
        """The division that gives MFU or, without a peak, TFLOPS. Empty: FLOPs are unknown."""
        if self.per_second is None:
            return ""
        if self.mfu is None or not self.peak:
            return f"{self.at_least}{speed(self.per_second)} = {self.work_and_time}"
        dtype = f" {self.summary.dtype}" if self.summary.dtype else ""
        dense = " measured" if self.summary.peak_measured else " dense"
        return f"{self.at_least}{percent(self.mfu)} = {speed(self.per_second)} / {speed(self.peak)}{dtype}{dense}"

    @property
    def work_and_time(self) -> str:
        devices = f" / {self.devices} devices" if self.devices > 1 else ""
        return f"{units.count(self.drawn.flops)} FLOPs / {duration(self.drawn.flops_seconds)}{devices}"

    @property
    def uncounted(self) -> str:
        """Operations of this run that have no FLOP formula."""
        if self.count is None or not self.at_least:
            return ""
        return few([clean(name) for name in self.count.uncounted])

    def values(self) -> Iterator[Value]:
        if self.per_second is None:
            return
        yield "model FLOPs", f"{units.count(self.drawn.flops)} FLOPs in {self.drawn.flops_steps:,} steps of all ranks"
        yield "time of these steps", duration(self.drawn.flops_seconds)
        if self.devices > 1:
            yield "devices of a rank", f"{self.devices:,}"
        unknown_steps = self.drawn.steps - self.drawn.flops_steps
        if unknown_steps:
            yield "steps with unknown FLOPs", f"{unknown_steps:,}, not counted"
        if self.count is not None:
            source = clean(self.summary.source or self.count.source)
            each = f"{units.count(self.count.model_flops)} FLOPs, {source} in step {self.count.step:,}"
            yield "FLOPs of a step", f"{each}; in other steps by the shapes of their batches"
        if self.peak:
            yield "peak", self.peak_value
            yield "source of the peak", self.peak_source
