"""Look up the FLOPs of a step by its batch shapes, its model calls and the trained parameters."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from perf_callbacks.flops.by_shape.rating import PeakRating
from perf_callbacks.flops.by_shape.shape_counts import (
    MOST_COUNTS,
    SAME,
    SCALED,
    CountedWork,
    ShapeTable,
    alike,
    keep,
    largest_ratio,
    together,
)
from perf_callbacks.flops.peaks.peak_rates import Peaks
from perf_callbacks.flops.unknown_reasons import NEW_SIZE, NO_BATCH, UNEVEN, UNREAD, UnknownFlopsReasons
from perf_callbacks.flops.work import Work
from perf_callbacks.kernel.batches.reader import BatchReader
from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.engine.marks import Calls
from perf_callbacks.kernel.engine.steps import StepFlops, Totals
from perf_callbacks.kernel.engine.work_model import WorkModel
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.summary_parts import FlopsSummary

MOST_TABLES = 16  # one per set of trained parameters and model calls; the oldest is dropped

_MOST_KNOWN = 256

LOOK_EVERY = 10  # steps between two checks of the trained parameters

CLOSE_STEPS = 100
"""Steps with a check each after a change: a program that trains two groups alternately will soon change again."""

Each = tuple[int, ...]
"""Forwards and backwards per batch, or if these aren't whole: forwards, backwards and batches of the step."""

ONCE: Each = (1, 1)

COUNTED = "counted"
COPY = "fake-tensor copy"
CLOSED_FORM = "closed form"
SOURCES = (COUNTED, SCALED, COPY, CLOSED_FORM)


class ShapedWork(WorkModel):
    """Known FLOPs of steps by batch shape, for each set of trained parameters and model calls.

    `trained` returns which parameters require gradients; None means that they never change. `on_change` is called when
    another step must be counted.
    """

    def __init__(
        self,
        reader: BatchReader | None = None,
        *,
        trained: Callable[[], Hashable] | None = None,
        on_change: Callable[[], object] | None = None,
    ) -> None:
        reader = reader or BatchReader()
        self._find_trained, self._on_change = trained, on_change
        self.rating: PeakRating | None = None  # None before the first count
        self.peak_exceeded: Peaks | None = None  # peaks that training exceeded, until the warning is logged
        self.unknowns = UnknownFlopsReasons(reader)
        self.uncounted_calls: dict[Each, tuple[int, int]] = {}
        """The two most recent steps of each uncounted number of model calls per batch."""
        self._trained: Hashable = None
        self.changed: int | None = None  # step of the last check that found other trained parameters
        self.checked: int | None = None
        """Last step whose work equaled an earlier one's; None if no second count has confirmed a count. A fingerprint
        alone confirms none: it leaves out attention."""
        self._fingerprints: dict[tuple[Hashable, ...], tuple[int, int]] = {}
        self.trainable_changed = False  # the trained parameters have changed, in an unknown step
        self._sure: tuple[Hashable, int] = None, 0  # trained parameters, and the last step for which they are certain
        self._tables: dict[tuple[Hashable, Each], ShapeTable] = {}
        self._sources: set[str] = set()
        self._efforts: dict[tuple[tuple[ShapeKey, ...], Calls | None], StepFlops | None] = {}
        self.look()

    @property
    def counted(self) -> Flops | None:
        return None if self.rating is None else self.rating.count

    @property
    def source(self) -> str | None:
        """Of the FLOPs returned so far."""
        return ", ".join([source for source in SOURCES if source in self._sources]) or None

    @property
    def varies(self) -> bool:
        """Steps with equal batch shapes had different FLOPs, so that those of all steps are unknown."""
        return self.unknowns.varies is not None

    def metrics(self, totals: Totals) -> dict[str, float | None]:
        self._judge(totals)
        if self.rating is None or self.varies or totals.effort_seconds <= 0:
            return {}
        metrics = self.rating.metrics(totals.effort, totals.effort_seconds)
        once = 1.0 if self.checked is None and self.source == COUNTED else None
        return {**metrics, "flops_known": totals.effort_steps / totals.steps, "flops_counted_once": once}

    def summary(self, included: Totals, excluded: Mapping[str, int]) -> FlopsSummary:
        self._judge(included)
        known_steps = included.effort_steps
        summary = self.unknowns.summary(included.steps, known_steps, excluded)
        if not known_steps or self.varies:
            return summary
        summary = replace(
            summary,
            model_flops=included.effort.model_flops,
            hardware_flops=included.effort.hardware_flops,
            seconds=included.effort_seconds,
            steps=known_steps,
        )
        if self.rating is None:
            return summary
        return replace(summary, **self.rating.summary(), source=self.source, checked_step=self.checked)

    @property
    def has_no_count(self) -> bool:
        """True if no step was counted with the parameters that are trained now."""
        return not any(trained == self._trained for trained, _ in self._tables)

    def rate(self, rating: PeakRating) -> None:
        self.rating = rating
        self._efforts.clear()

    def _judge(self, totals: Totals) -> None:
        reason = None if self.rating is None else self.rating.refuted(totals.effort, totals.effort_seconds)
        if self.rating is not None and reason is not None:
            self.peak_exceeded = self.rating.peaks
            self.unknowns.peak = reason
            self.rate(replace(self.rating, peaks=None))
            self._tell()

    def look_after(self, step: int) -> int:
        return step + (1 if self.changed is not None and step < self.changed + CLOSE_STEPS else LOOK_EVERY)

    def look(self, step: int = 0) -> None:
        """Check which parameters are trained. It is unknown in which step they changed since the last check."""
        trained = self._trained if self._find_trained is None else self._find_trained()
        if trained == self._trained:
            if step and not self.trainable_changed:
                self._sure = trained, step
        else:
            if self._trained is not None:
                self.trainable_changed, self.changed = True, step
            self._trained = trained
            self._efforts.clear()
            if self._tables:
                self.uncounted_calls.clear()
                self._tell()

    def close(self) -> None:
        self.look()
        self._find_trained = self._on_change = None

    def settle(self) -> None:
        """The caller has looked up the FLOPs of all finished steps."""
        self.trainable_changed = False

    def learn(
        self,
        shapes: Sequence[ShapeKey],
        passes: Sequence[Work],
        calls: Calls | None = None,
        *,
        step: int = 0,
        source: str = COUNTED,
    ) -> None:
        """Each pass includes a share of the optimizer's FLOPs. Without `calls`, each batch had one of each."""
        self._efforts.clear()
        key = self._trained, _each(calls, len(shapes))
        self.uncounted_calls.pop(key[1], None)
        if key not in self._tables:
            keep(self._tables, key, ShapeTable(), MOST_TABLES)
        table = self._tables[key]
        if not shapes or not all(shapes):
            return
        counts = [CountedWork(work, step, frozenset({source})) for work in passes]
        before, now = table.step_work(shapes), together(counts).work
        if before is not None:
            ratio = largest_ratio(before.work, now)
            if ratio <= 1 + SAME:
                self.checked = step
                if ratio > 1 or before.work.cells == now.cells:
                    return  # the same work: the earlier count stays
            elif before.step and not self.varies:
                times = f"{ratio:.2f} times between" if isfinite(ratio) else "some have none;"
                self._vary(f"{times} counts at steps {before.step} and {step}")
        table.learn(shapes, counts)

    def share(self, shapes: Sequence[ShapeKey], total: Work, calls: Calls) -> float | None:
        """Return the FLOPs of a count as a share of the step's FLOPs by earlier counts. None: there is none."""
        table = self._tables.get((self._trained, _each(calls, len(shapes))))
        before = None if table is None or not all(shapes) else table.step_work(shapes)
        return None if before is None or not before.work.model_flops else total.model_flops / before.work.model_flops

    def _vary(self, difference: str) -> None:
        self._efforts.clear()
        self.unknowns.varies = f"the work of equal batches varies ({difference})"

    def compare_fingerprint(self, shapes: Sequence[ShapeKey], calls: Calls, products: int, step: int) -> None:
        self.look(step)
        each = _each(calls, len(shapes))
        if not (products and shapes and all(shapes)) or self.varies or self.trainable_changed:
            return
        key = self._trained, each, alike(shapes)
        before, since = self._fingerprints.get(key, (products, 0))
        ratio = max(before, products) / min(before, products)
        if ratio > 1 + SAME and (len(each) == len(ONCE) or len(set(shapes)) == 1):
            self._vary(f"{ratio:.2f} times between the modules of steps {since} and {step}")
        elif since and self.checked is not None:
            self.checked = step
        keep(self._fingerprints, key, (products, step), MOST_COUNTS)

    def step_flops(self, shapes: Sequence[ShapeKey], calls: Calls | None = None, step: int = 0) -> StepFlops | None:
        if not shapes:
            self.unknowns.note(NO_BATCH)
            return None
        if self.trainable_changed:
            trained, last = self._sure
            effort = self._effort(tuple(shapes), _each(calls, len(shapes)), trained) if step <= last else None
            if effort is None:
                self.unknowns.note("the trained parameters changed in some steps")
            return effort
        key = tuple(shapes), calls
        if key not in self._efforts:
            keep(self._efforts, key, self._effort(key[0], _each(calls, len(shapes)), self._trained), _MOST_KNOWN)
        effort = self._efforts[key]
        if effort is None:
            self._miss(key[0], _each(calls, len(shapes)), step)
        return effort

    def knows(self, shape: ShapeKey) -> bool:
        """For some number of model calls."""
        return any(trained == self._trained and table.batch_work(shape) for (trained, _), table in self._tables.items())

    def wants(self, shape: ShapeKey) -> bool:
        room = all(table.room(shape) for (trained, _), table in self._tables.items() if trained == self._trained)
        return bool(shape) and room and not self.knows(shape)

    def _effort(self, shapes: tuple[ShapeKey, ...], each: Each, trained: Hashable) -> StepFlops | None:
        table = self._tables.get((trained, each))
        apart = len(each) == len(ONCE) or len(set(shapes)) == 1  # it is unknown which of unlike batches had a call
        count = table.step_work(shapes) if table is not None and not self.varies and all(shapes) and apart else None
        if count is None:
            return None
        self._sources |= count.sources
        work = count.work
        return StepFlops(work.model_flops, work.hardware_flops) if self.rating is None else self.rating.effort(work)

    def _tell(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def _miss(self, shapes: tuple[ShapeKey, ...], each: Each, step: int) -> None:
        if not all(shapes):
            self.unknowns.note(UNREAD)
        elif self._tables and (self._trained, each) not in self._tables:
            self.unknowns.note("forward and backward ran in an order that was not counted")
            _, last = self.uncounted_calls.pop(each, (0, 0))
            keep(self.uncounted_calls, each, (last, step), MOST_TABLES)
            self._tell()
        elif len(each) > len(ONCE) and len(set(shapes)) > 1:
            self.unknowns.note(UNEVEN)
        else:
            self.unknowns.note(NEW_SIZE)


def _each(calls: Calls | None, batches: int) -> Each:
    """A batch with a backward also had a forward, even an unobserved one."""
    if calls is None or not batches:
        return ONCE
    if calls.forwards % batches or calls.backwards % batches:
        return (*calls, batches)
    forwards, backwards = calls.forwards // batches, calls.backwards // batches
    return max(forwards, 1 if backwards else 0), backwards
