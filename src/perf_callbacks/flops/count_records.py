"""Write the `flops` records of a fit, and compare its FLOPs with the peaks of the device."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perf_callbacks.flops.by_shape.rating import PeakRating
from perf_callbacks.flops.by_shape.shaped_work import CLOSED_FORM, COUNTED, ShapedWork
from perf_callbacks.flops.counted_step import REST
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.peaks.peak_rates import Peaks, advice
from perf_callbacks.flops.peaks.peak_source import crowded, find, forget
from perf_callbacks.flops.training_filter import TrainingFilter
from perf_callbacks.flops.work import Work
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.process.compiler import anything_compiled
from perf_callbacks.kernel.records.flops_record import ENOUGH_COVERED, Flops

_HEAVIEST = 20

UPDATE = "operations outside of forward and backward after the first thousand without a product"

BY_MODULE = "FLOPs by module"  # of the error message if FLOPs can't be divided among modules


def counted(
    counter: FlopCounter,
    step: int,
    tokens: int | None,
    *,
    source: str = COUNTED,
    whole_step: bool = True,
    total: Work | None = None,
    missing: Sequence[str] = (),
) -> Flops:
    """`total` is the certain part of the count, `missing` names work that it may not have seen."""
    total, coverage, observed = total or counter.work(), counter.weights.coverage(), counter.observed
    modules = counter.modules.lines(total)  # may set `failure`
    six_n = 6 * counter.weights.multiplied_elements() * (tokens or 0)
    return replace(
        estimated(total, step, source=source),
        coverage=coverage,
        uncounted=observed.unknown | dict.fromkeys([*missing, *_left_out(counter)], 1),
        # a copy of the model runs one forward and one backward: all other work of a step is missing
        lower_bound=source != COUNTED
        or bool(observed.unknown or missing)
        or (coverage is not None and coverage < ENOUGH_COVERED),
        whole_step=whole_step,
        compiled=anything_compiled(),
        logical_flops=sum(counter.logical.values()) or None,
        causal_flops=observed.causal_flops,
        masked_flops=observed.masked_flops,
        over_six_n=total.model_flops / six_n if six_n else None,
        products=tuple((*what, flops) for what, flops in observed.products.most_common(_HEAVIEST)),
        copies=tuple((*what, size) for what, size in observed.copies.most_common(_HEAVIEST)),
        reads=dict(observed.reads),
        values_read=dict(observed.values_read),
        reductions=len(observed.reductions),
        errors=dict(counter.errors) | ({f"{BY_MODULE}: {failure}": 1} if (failure := counter.modules.failure) else {}),
        modules=modules,
    )


def _left_out(counter: FlopCounter) -> Iterator[str]:
    """Yield work that the model doesn't need, but the device did: HFU is a lower bound."""
    if counter.limit is not None and counter.limit.left_update is not None:
        yield UPDATE
    if counter.limit is not None and counter.limit.ended is not None:
        yield REST


def estimated(work: Work, step: int, *, source: str = CLOSED_FORM) -> Flops:
    return Flops(
        step=step,
        model_flops=work.model_flops,
        hardware_flops=work.hardware_flops,
        by_phase=work.by_phase,
        by_dtype=work.by_dtype,
        source=source,
        coverage=None,
        uncounted={},
        lower_bound=True,
    )


class CountRecords:
    """Writes the `flops` records of one fit, and compares the FLOPs with the device's peaks."""

    def __init__(self, recorder: Recorder, work: ShapedWork) -> None:
        self._recorder = recorder
        self._work = work
        self.apart: dict[str, int] = {}
        """Model calls outside of the training's forward, by the model's name. No count includes them."""
        self._failed = False

    def write(self, record: Flops) -> None:
        record, work = self._with_apart(record), self._work
        self._recorder.write(record)
        failure = next((error for error in record.errors if error.startswith(BY_MODULE)), None)
        if failure is not None and not self._failed:
            self._failed = True
            log.warning("perf_callbacks: no %s. The FLOPs of the step are not affected.", failure)
        peaks = work.rating.peaks if work.rating is not None else self._peaks(record)
        work.rate(PeakRating.from_count(record, peaks, work.rating, self._recorder.run.devices))
        if peaks is not None and work.rating is not None and work.rating.peak_flops_per_second is None:
            work.unknowns.peak = f"no peak is known for {work.rating.dtype} ({peaks.source})"

    def _peaks(self, record: Flops) -> Peaks | None:
        recorder = self._recorder
        peaks = find(recorder.device, record.by_dtype, recorder.config)
        if peaks is None:
            why = crowded(recorder.device) if recorder.config.measure_peak != "off" else None
            self._work.unknowns.peak = why or f"no dense peak is known for {recorder.run.device}: set peak_tflops"
            if recorder.run.rank == 0:
                log.warning("perf_callbacks: %s", f"{why}." if why else advice(recorder.run.device))
        return peaks

    def check_peak(self) -> None:
        """Warn if training ran faster than the device's peak. A measured peak is deleted."""
        exceeded, self._work.peak_exceeded = self._work.peak_exceeded, None
        if exceeded is None:
            return
        log.warning("perf_callbacks: %s; MFU and HFU are left out from now on.", self._work.unknowns.peak)
        if exceeded.measured:
            forget(self._recorder.device)

    def note_apart(self, training: TrainingFilter | None) -> None:
        """All FLOPs are a lower bound if a model, such as a teacher, ran outside of the training's forward."""
        if training is None:
            return
        training.settle()
        news = {name: calls for name, calls in training.apart.items() if name not in self.apart}
        self.apart |= news
        rating = self._work.rating
        if news and rating is not None:
            count = self._with_apart(rating.count)
            self._recorder.write(count)
            self._work.rate(replace(rating, count=count))

    def _with_apart(self, record: Flops) -> Flops:
        uncounted = {**record.uncounted, **self.apart}
        return replace(record, uncounted=uncounted, lower_bound=record.lower_bound or bool(self.apart))
