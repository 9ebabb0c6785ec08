"""MFU and related metrics of steps, from the last count of FLOPs and the peaks of the device."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perf_callbacks.flops.peaks.peak_rates import Peaks, ideal_seconds
from perf_callbacks.flops.work import Work, beside_model
from perf_callbacks.kernel.engine.steps import StepFlops
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.module_records import heaviest
from perf_callbacks.kernel.units import TERA


@dataclass(frozen=True, slots=True)
class PeakRating:
    """Last count of FLOPs and peaks of the device."""

    count: Flops
    peaks: Peaks | None
    unmasked_share: float | None
    """Of the executed FLOPs; None without masked attention, or if it differs between the fit's counts."""
    devices: int = 1  # that compute the FLOPs

    @classmethod
    def from_count(
        cls, count: Flops, peaks: Peaks | None, before: "PeakRating | None" = None, devices: int = 1
    ) -> "PeakRating":
        unmasked = 1 - count.masked_flops / count.hardware_flops if count.masked_flops else None
        return cls(count, peaks, unmasked if before is None or before.unmasked_share == unmasked else None, devices)

    @property
    def dtype(self) -> str:
        """The dtype with the most model FLOPs, whose peak MFU and HFU use."""
        by_dtype = self.count.by_dtype
        return max(by_dtype, key=lambda dtype: by_dtype[dtype])

    @property
    def peak_flops_per_second(self) -> float | None:
        """Of one device in `dtype`."""
        return None if self.peaks is None else self.peaks.peak_flops_per_second(self.dtype)

    def effort(self, work: Work) -> StepFlops:
        ideal = None if self.peaks is None else ideal_seconds(work.by_dtype, self.peaks)
        return StepFlops(work.model_flops, work.hardware_flops, ideal)

    def metrics(self, effort: StepFlops, seconds: float) -> Mapping[str, float | None]:
        seconds *= self.devices
        model, hardware = effort.model_flops / seconds, effort.hardware_flops / seconds
        peak = self.peak_flops_per_second
        values = {"tflops": model / TERA, "hardware_tflops": hardware / TERA, "flops_coverage": self.count.coverage}
        if self.count.lower_bound or self.count.uncounted:
            values["flops_lower_bound"] = 1.0
        if peak is None:
            return values
        mixed = None if effort.ideal_seconds is None else effort.ideal_seconds / seconds
        return {**values, "mfu": model / peak, "hfu": hardware / peak, "mfu_mixed": mixed, "peak_tflops": peak / TERA}

    def summary(self) -> dict[str, Any]:
        return {
            "coverage": self.count.coverage,
            "lower_bound": self.count.lower_bound,
            "uncounted": tuple(sorted(self.count.uncounted)),
            "heaviest_modules": heaviest(self.count.modules),
            "beside_model": beside_model(self.count.by_phase),
            "dtype": self.dtype,
            "devices": self.devices,
            "unmasked_share": self.unmasked_share,
            "peak_flops_per_second": self.peak_flops_per_second,
            "peak_source": None if self.peaks is None else self.peaks.source,
            "peak_measured": self.peaks is not None and self.peaks.measured,
        }

    def refuted(self, effort: StepFlops, seconds: float) -> str | None:
        peak = self.peak_flops_per_second
        if self.peaks is None or peak is None or effort.hardware_flops <= peak * seconds * self.devices:
            return None
        if self.peaks.measured:
            return "training ran faster than the measured peak"
        return f"training ran faster than the stated peak of {peak / TERA:g} TFLOPS in {self.dtype}"
