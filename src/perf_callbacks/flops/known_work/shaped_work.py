"""Look up the FLOPs of a step by its batch shapes, its model calls and the trained parameters."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from perf_callbacks.flops.known_work.rating import Rating
from perf_callbacks.flops.known_work.shape_counts import (
    MOST_COUNTS,
    SAME,
    SCALED,
    Count,
    ShapeTable,
    alike,
    keep,
    largest_ratio,
    together,
)
from perf_callbacks.flops.peaks.peak_rates import Peaks
from perf_callbacks.flops.unknown_reasons import NEW_SIZE, NO_BATCH, UNEVEN, UNREAD, Unknowns
from perf_callbacks.flops.work import Work
from perf_callbacks.kernel.batches.reader import BatchReader
from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.engine.marks import Calls
from perf_callbacks.kernel.engine.steps import StepFlops, Totals
from perf_callbacks.kernel.engine.work_model import WorkModel
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.summary_parts import FlopsSummary

MOST_TABLES = 16
"""Largest number of tables of counts. Each set of trained parameters and model calls has its own table. Beyond this
number, the oldest table is dropped."""

_MOST_KNOWN = 256

LOOK_EVERY = 10
"""Number of steps from one check of the trained parameters to the next."""

CLOSE_STEPS = 100
"""For this many steps after a change of the trained parameters, every step is followed by a check. A program that
trains two groups of parameters alternately will soon change the trained parameters again."""

Each = tuple[int, ...]
"""Number of forwards per batch and number of backwards per batch. If a number is not an integer, the tuple holds the
forwards, backwards and batches of the whole step."""

ONCE: Each = (1, 1)

COUNTED = "counted"
COPY = "fake-tensor copy"
CLOSED_FORM = "closed form"
SOURCES = (COUNTED, SCALED, COPY, CLOSED_FORM)
"""Sources of the FLOPs of a step."""


class ShapedWork(WorkModel):
    """Known FLOPs of steps by batch shape, for each set of trained parameters and model calls.

    Args:
        reader: Reader of the fit's batches.
        trained: Function that returns which parameters require gradients. None means that the trained parameters never
            change.
        on_change: Function that is called when another step must be counted.
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
        self.rating: Rating | None = None
        """Peaks of the device, and the last count. None means that nothing was counted yet."""
        self.peak_exceeded: Peaks | None = None
        """Peaks of the device if training exceeded them. After the warning is logged, the value is None again."""
        self.unknowns = Unknowns(reader)
        """Reasons why FLOPs of steps are unknown."""
        self.uncounted_calls: dict[Each, tuple[int, int]] = {}
        """Maps each uncounted number of model calls per batch to the two most recent steps with this number."""
        self._trained: Hashable = None
        self.changed: int | None = None
        """Step of the most recent check that found changed trained parameters. None means that no check found a
        change."""
        self.checked: int | None = None
        """Most recent step whose work was found equal to the work of an earlier step. None means that no second count
        has confirmed a count. An outline alone confirms none, because it leaves out attention."""
        self._outlines: dict[tuple[Hashable, ...], tuple[int, int]] = {}
        self.trainable_changed = False
        """True if the trained parameters have changed, but the step of the change is unknown."""
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
        """Sources of the FLOPs that were returned so far, or None if no FLOPs were returned."""
        return ", ".join([one for one in SOURCES if one in self._sources]) or None

    @property
    def varies(self) -> bool:
        """True if steps with equal batch shapes had different FLOPs, which makes the FLOPs of all steps unknown."""
        return self.unknowns.varies is not None

    def metrics(self, totals: Totals) -> dict[str, float | None]:
        """Return FLOP/s, MFU and related metrics of steps, or an empty dict if they are unknown."""
        self._judge(totals)
        if self.rating is None or self.varies or totals.effort_seconds <= 0:
            return {}
        metrics = self.rating.metrics(totals.effort, totals.effort_seconds)
        once = 1.0 if self.checked is None and self.source == COUNTED else None
        return {**metrics, "flops_known": totals.effort_steps / totals.steps, "flops_counted_once": once}

    def summary(self, included: Totals, excluded: Mapping[str, int]) -> FlopsSummary:
        """Return the FLOPs of all steps that the metrics include, for the `summary` record."""
        self._judge(included)
        known = included.effort_steps
        summary = self.unknowns.summary(included.steps, known, excluded)
        if not known or self.varies:
            return summary
        summary = replace(
            summary,
            model_flops=included.effort.model_flops,
            hardware_flops=included.effort.hardware_flops,
            seconds=included.effort_seconds,
            steps=known,
        )
        if self.rating is None:
            return summary
        return replace(summary, **self.rating.summary(), source=self.source, checked_step=self.checked)

    @property
    def has_no_count(self) -> bool:
        """True if no step was counted with the parameters that are trained now."""
        return not any(trained == self._trained for trained, _ in self._tables)

    def rate(self, rating: Rating) -> None:
        self.rating = rating
        self._efforts.clear()

    def _judge(self, totals: Totals) -> None:
        """Drop the peak if these steps were faster than the peak allows."""
        reason = None if self.rating is None else self.rating.refuted(totals.effort, totals.effort_seconds)
        if self.rating is not None and reason is not None:
            self.peak_exceeded = self.rating.peaks
            self.unknowns.peak = reason
            self.rate(replace(self.rating, peaks=None))
            self._tell()

    def look_after(self, step: int) -> int:
        """Return the number of the step at whose end the trained parameters are checked next.

        The previous check was at the end of step `step`.
        """
        return step + (1 if self.changed is not None and step < self.changed + CLOSE_STEPS else LOOK_EVERY)

    def look(self, step: int = 0) -> None:
        """Check after a step which parameters are trained.

        If the trained parameters have changed since the previous check, it is unknown in which step they changed.
        """
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
        """Check the trained parameters a last time, and drop all references to the model."""
        self.look()
        self._find_trained = self._on_change = None

    def settle(self) -> None:
        """Set `trainable_changed` to False. The caller has already looked up the FLOPs of all finished steps."""
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
        """Store the FLOPs of a counted step together with the shapes of its batches.

        A pass is a forward with its backward. Each pass includes a share of the optimizer's FLOPs. If `calls` is None,
        each batch had one forward and one backward.
        """
        self._efforts.clear()
        key = self._trained, _each(calls, len(shapes))
        self.uncounted_calls.pop(key[1], None)
        if key not in self._tables:
            keep(self._tables, key, ShapeTable(), MOST_TABLES)
        table = self._tables[key]
        if not shapes or not all(shapes):
            return
        counts = [Count(work, step, frozenset({source})) for work in passes]
        before, now = table.of(shapes), together(counts).work
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

    def covers(self, shapes: Sequence[ShapeKey], total: Work, calls: Calls) -> bool:
        """Return True if an earlier count has as many FLOPs as an incomplete one, which then tells nothing new."""
        table = self._tables.get((self._trained, _each(calls, len(shapes))))
        before = None if table is None or not all(shapes) else table.of(shapes)
        return before is not None and total.model_flops <= before.work.model_flops * (1 + SAME)

    def _vary(self, difference: str) -> None:
        self._efforts.clear()
        self.unknowns.varies = f"the work of equal batches varies ({difference})"

    def outline(self, shapes: Sequence[ShapeKey], calls: Calls, products: int, step: int) -> None:
        """Compare the outlines of two steps that have equal shapes, model calls and trained parameters."""
        self.look(step)
        each = _each(calls, len(shapes))
        if not (products and shapes and all(shapes)) or self.varies or self.trainable_changed:
            return
        key = self._trained, each, alike(shapes)
        before, since = self._outlines.get(key, (products, 0))
        ratio = max(before, products) / min(before, products)
        if ratio > 1 + SAME and (len(each) == len(ONCE) or len(set(shapes)) == 1):
            self._vary(f"{ratio:.2f} times between the modules of steps {since} and {step}")
        elif since and self.checked is not None:
            self.checked = step
        keep(self._outlines, key, (products, step), MOST_COUNTS)

    def of(self, shapes: Sequence[ShapeKey], calls: Calls | None = None, step: int = 0) -> StepFlops | None:
        """Return the FLOPs of a step with batches of these shapes, or None if they are unknown."""
        if not shapes:
            self.unknowns.note(NO_BATCH)
            return None
        if self.trainable_changed:
            trained, last = self._sure
            known = self._effort(tuple(shapes), _each(calls, len(shapes)), trained) if step <= last else None
            if known is None:
                self.unknowns.note("the trained parameters changed in some steps")
            return known
        key = tuple(shapes), calls
        if key not in self._efforts:
            keep(self._efforts, key, self._effort(key[0], _each(calls, len(shapes)), self._trained), _MOST_KNOWN)
        effort = self._efforts[key]
        if effort is None:
            self._miss(key[0], _each(calls, len(shapes)), step)
        return effort

    def knows(self, shape: ShapeKey) -> bool:
        """Return True if the FLOPs of a batch shape are known or can be scaled, for some number of model calls."""
        return any(trained == self._trained and table.one(shape) for (trained, _), table in self._tables.items())

    def wants(self, shape: ShapeKey) -> bool:
        """Return True if the FLOPs of this batch shape are unknown and another count can be stored."""
        room = all(table.room(shape) for (trained, _), table in self._tables.items() if trained == self._trained)
        return bool(shape) and room and not self.knows(shape)

    def _effort(self, shapes: tuple[ShapeKey, ...], each: Each, trained: Hashable) -> StepFlops | None:
        table = self._tables.get((trained, each))
        apart = len(each) == len(ONCE) or len(set(shapes)) == 1  # it is unknown which of unlike batches had a call
        found = table.of(shapes) if table is not None and not self.varies and all(shapes) and apart else None
        if found is None:
            return None
        self._sources |= found.sources
        work = found.work
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
    """Return the number of forwards and backwards per batch.

    A batch with a backward also had a forward, even if no forward was observed.
    """
    if calls is None or not batches:
        return ONCE
    if calls.forwards % batches or calls.backwards % batches:
        return (*calls, batches)
    forwards, backwards = calls.forwards // batches, calls.backwards // batches
    return max(forwards, 1 if backwards else 0), backwards
