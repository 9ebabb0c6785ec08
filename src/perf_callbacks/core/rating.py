"""The peak that the work of steps is compared with, and the coverage of its count."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from perf_callbacks.core.peaks import TERA, Peaks, ideal_seconds
from perf_callbacks.core.work import Effort, Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Rating:
    """Peak and coverage of the last count."""

    dtype: str
    """Number format that carries most model FLOPs. MFU and HFU use its peak, as in the papers."""
    coverage: float | None
    """Share of the weights, among those that should be multiplied, that a counted operation multiplied. None: not
    observed."""
    lower_bound: bool
    """True: the step has more FLOPs than were counted."""
    peaks: Peaks | None = None

    @property
    def peak_flops_per_second(self) -> float | None:
        """Peak of one device in that format."""
        return None if self.peaks is None else self.peaks.peak_flops_per_second(self.dtype)

    def effort(self, work: Work) -> Effort:
        """Compute the effort of a step with this work."""
        ideal = None if self.peaks is None else ideal_seconds(work.by_dtype, self.peaks)
        return Effort(work.model_flops, work.hardware_flops, ideal)

    def metrics(self, effort: Effort, seconds: float) -> Mapping[str, float | None]:
        """Compute the metrics of work that took this long."""
        model, hardware, peak = (
            effort.model_flops / seconds,
            effort.hardware_flops / seconds,
            self.peak_flops_per_second,
        )
        values = {"tflops": model / TERA, "hardware_tflops": hardware / TERA, "flops_coverage": self.coverage}
        if self.lower_bound:
            values["flops_lower_bound"] = 1.0
        if peak is None:
            return values
        mixed = None if effort.ideal_seconds is None else effort.ideal_seconds / seconds
        return {**values, "mfu": model / peak, "hfu": hardware / peak, "mfu_mixed": mixed, "peak_tflops": peak / TERA}

    def summary(self) -> dict[str, Any]:
        """Compute the fields of the `Summary` record."""
        return {
            "flops_coverage": self.coverage,
            "flops_lower_bound": self.lower_bound,
            "flops_dtype": self.dtype,
            "peak_flops_per_second": self.peak_flops_per_second,
            "peak_source": None if self.peaks is None else self.peaks.source,
            "peak_measured": self.peaks is not None and self.peaks.measured,
        }

    def refuted(self, effort: Effort, seconds: float) -> bool:
        """Tell if the work exceeds a measured peak."""
        peak = self.peak_flops_per_second
        measured = self.peaks is not None and self.peaks.measured
        return measured and peak is not None and effort.hardware_flops > peak * seconds

    def without_peak(self) -> "Rating":
        """Return the rating without a peak."""
        return replace(self, peaks=None)


def rate(work: Work, *, coverage: float | None, lower_bound: bool, peaks: Peaks | None = None) -> Rating:
    """Rate a count."""
    by_dtype = work.by_dtype
    return Rating(
        dtype=max(by_dtype, key=lambda dtype: by_dtype[dtype]), coverage=coverage, lower_bound=lower_bound, peaks=peaks
    )
