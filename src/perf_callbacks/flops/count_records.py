"""FLOPs records of a fit, and the rating of its work by the peaks of the device."""

from dataclasses import replace

from perf_callbacks.flops.known_work.rating import rate
from perf_callbacks.flops.known_work.shaped_work import ShapedWork
from perf_callbacks.flops.peaks.peak_rates import Peaks, advice
from perf_callbacks.flops.peaks.peak_source import find, forget
from perf_callbacks.flops.training_filter import TrainingFilter
from perf_callbacks.flops.work import Work
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.records.fit_records import Flops


class CountRecords:
    """Writes the FLOPs records of one fit, and rates the work."""

    def __init__(self, recorder: Recorder, work: ShapedWork) -> None:
        self._recorder = recorder
        self._work = work
        self.apart: dict[str, int] = {}
        """Calls of models apart from the forward, which the counts leave out."""

    def write(self, record: Flops, total: Work) -> None:
        """Write the record of a count, and rate the work by the peaks of the device."""
        record = self._with_apart(record)
        self._recorder.write(record)
        work = self._work
        work.counted = record
        peaks = work.rating.peaks if work.rating is not None else self._peaks(total)
        rating = rate(
            total,
            coverage=record.coverage,
            lower_bound=record.lower_bound,
            peaks=peaks,
            uncounted=record.uncounted,
            masked_flops=record.masked_flops,
            before=work.rating,
        )
        work.rate(rating)
        if peaks is not None and rating.peak_flops_per_second is None:
            work.unknowns.peak = f"no peak is known for {rating.dtype} ({peaks.source})"

    def _peaks(self, total: Work) -> Peaks | None:
        """Find the peaks of the device, once per fit. A measurement may take a second, in an excluded step."""
        recorder = self._recorder
        found = find(recorder.device, total.by_dtype, recorder.config)
        if found is None:
            self._work.unknowns.peak = f"no dense peak is known for {recorder.run.device}: set peak_tflops"
            if recorder.run.rank == 0:
                log.warning("perf_callbacks: %s", advice(recorder.run.device))
        return found

    def check_peak(self) -> None:
        """Log that training ran faster than the peak. Forget a measured peak, so that the next run measures again."""
        exceeded, self._work.peak_exceeded = self._work.peak_exceeded, None
        if exceeded is None:
            return
        log.warning("perf_callbacks: %s; MFU and HFU are left out from now on.", self._work.unknowns.peak)
        if exceeded.measured:
            forget(self._recorder.device)

    def note_apart(self, training: TrainingFilter | None) -> None:
        """Mark all FLOPs as a lower bound once a model has run apart from the forward."""
        if training is None:
            return
        training.settle()
        news = {name: calls for name, calls in training.apart.items() if name not in self.apart}
        self.apart |= news
        work = self._work
        if news and work.counted is not None and work.rating is not None:
            work.counted = self._with_apart(work.counted)
            self._recorder.write(work.counted)
            work.rate(replace(work.rating, lower_bound=True, uncounted=tuple(sorted(work.counted.uncounted))))

    def _with_apart(self, record: Flops) -> Flops:
        uncounted = {**record.uncounted, **self.apart}
        return replace(record, uncounted=uncounted, lower_bound=record.lower_bound or bool(self.apart))
