"""Work of a step by facts that need no counting: shapes of batches, calls of the model, trained parameters."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from perf_callbacks.core.batches import ShapeKey
from perf_callbacks.core.marks import Calls
from perf_callbacks.core.rating import Rating
from perf_callbacks.core.records import Flops
from perf_callbacks.core.shape_counts import SCALED, Book, Count, Learned, keep
from perf_callbacks.core.unknown_reasons import UNREAD, Unknowns
from perf_callbacks.core.work import Effort, Work

MOST_BOOKS = 16
"""Most sets of trained parameters and calls whose counts are kept. Beyond it the oldest is dropped."""

_MOST_KNOWN = 256

Each = tuple[int, ...]
"""Calls of forward and backward for each batch of a step; if that isn't whole, for all batches, and the number of
batches."""

ONCE: Each = (1, 1)

COUNTED = "counted"
COPY = "fake-tensor copy"
CLOSED_FORM = "closed form"
SOURCES = (COUNTED, SCALED, COPY, CLOSED_FORM)
"""Sources of FLOPs."""


class ShapedWork:
    """Work of batches by their shapes, kept apart by the calls of the model in a step and by the trained parameters."""

    def __init__(self) -> None:
        self.rating: Rating | None = None
        """Peak and coverage that work is compared with. None: nothing was counted yet."""
        self.refuted = False
        """True: a step did more than a measured peak allows."""
        self.counted: Flops | None = None
        """The last count."""
        self.wanted = False
        """True: FLOPs are wanted at all."""
        self.unknowns = Unknowns()
        """Reasons for which steps have no FLOPs."""
        self.trained: Callable[[], Hashable] | None = None
        """Returns the parameters that require gradients."""
        self.news: Callable[[], object] | None = None
        """Called when there is something to count."""
        self.missing: dict[Each, tuple[int, int]] = {}
        """Calls of the model that were never counted: the last two steps that had them."""
        self._trained: Hashable = None
        self.unsure = False
        """True: the trained parameters have changed, nobody saw after which step."""
        self._sure: tuple[Hashable, int] = None, 0  # parameters that were trained up to a step
        self._books: dict[tuple[Hashable, Each], Book] = {}
        self._sources: set[str] = set()
        self._efforts: dict[tuple[tuple[ShapeKey, ...], Calls | None], Effort | None] = {}

    @property
    def source(self) -> str | None:
        """Sources of the FLOPs that were returned so far; None: there were none."""
        return ", ".join([one for one in SOURCES if one in self._sources]) or None

    @property
    def varies(self) -> bool:
        """Tell if equal batches took different work. Then no batch has known FLOPs."""
        return self.unknowns.varies is not None

    def summary(self, steps: int, known: int, excluded: Mapping[str, int]) -> dict[str, Any]:
        """Return the `Summary` fields of a fit with this many included steps, and this many whose work is known."""
        told = self.unknowns.summary(steps, known, excluded) if self.wanted else {}
        if self.rating is None or not known or self.varies:
            return told
        return {**told, "flops_source": self.source, **self.rating.summary()}

    @property
    def fresh(self) -> bool:
        """Tell if nothing was counted yet with the currently trained parameters."""
        return not any(trained == self._trained for trained, _ in self._books)

    def rate(self, rating: Rating) -> None:
        """Compare work with this peak and coverage."""
        self.rating = rating
        self._efforts.clear()

    def judge(self, effort: Effort, seconds: float) -> None:
        """Drop a measured peak if these steps were faster than it allows."""
        if self.rating is not None and self.rating.refuted(effort, seconds):
            self.refuted = True
            self.unknowns.peak = "training ran faster than the measured peak"
            self.rate(self.rating.without_peak())
            self._tell()

    def look(self, step: int = 0) -> None:
        """Check after a step which parameters are trained.

        If they changed, steps since the last check may have had either set.
        """
        trained = self._trained if self.trained is None else self.trained()
        if trained == self._trained:
            if step and not self.unsure:
                self._sure = trained, step
        else:
            self.unsure = self.unsure or self._trained is not None
            self._trained = trained
            self._efforts.clear()
            if self._books:
                self.missing.clear()
                self._tell()

    def settle(self) -> None:
        """Accept the FLOPs of the steps up to the last check."""
        self.unsure = False

    def learn(
        self,
        shapes: Sequence[ShapeKey],
        passes: Sequence[Work],
        calls: Calls | None = None,
        *,
        step: int = 0,
        source: str = COUNTED,
    ) -> Learned:
        """Learn the shapes of a counted step and the work of its passes, each with a share of the optimizer's.

        Without `calls`, each batch had one forward and one backward.
        """
        self._efforts.clear()
        key = self._trained, _each(calls, len(shapes))
        self.missing.pop(key[1], None)
        if key not in self._books:
            keep(self._books, key, Book(), MOST_BOOKS)
        book = self._books[key]
        if not shapes or not all(shapes):
            return Learned(1.0, 0)
        learned = book.learn(shapes, [Count(work, step, frozenset({source})) for work in passes])
        if learned.since and not self.varies:
            self.unknowns.varies = (
                f"the work of equal batches varies ({learned.contradicts:.2f} times between counts at steps "
                f"{learned.since} and {step})"
            )
        return learned

    def of(self, shapes: Sequence[ShapeKey], calls: Calls | None = None, step: int = 0) -> Effort | None:
        """Return the work of a step with batches of these shapes; None: unknown."""
        if self.unsure:
            trained, last = self._sure
            known = self._effort(tuple(shapes), _each(calls, len(shapes)), trained) if step <= last else None
            if known is None:
                self.unknowns.note("in some steps other parameters were trained than before")
            return known
        key = tuple(shapes), calls
        if key not in self._efforts:
            if len(self._efforts) >= _MOST_KNOWN:
                self._efforts.clear()
            self._efforts[key] = self._effort(key[0], _each(calls, len(shapes)), self._trained)
        effort = self._efforts[key]
        if effort is None:
            self._miss(key[0], _each(calls, len(shapes)), step)
        return effort

    def knows(self, shape: ShapeKey) -> bool:
        """Tell if the work of a batch of this shape is known or can be scaled, for any number of calls."""
        return any(trained == self._trained and book.one(shape) for (trained, _), book in self._books.items())

    def wants(self, shape: ShapeKey) -> bool:
        """Tell if counting a batch of this shape would tell something new."""
        room = all(book.room(shape) for (trained, _), book in self._books.items() if trained == self._trained)
        return bool(shape) and room and not self.knows(shape)

    def _effort(self, shapes: tuple[ShapeKey, ...], each: Each, trained: Hashable) -> Effort | None:
        book = self._books.get((trained, each))
        found = book.of(shapes) if book is not None and not self.varies and all(shapes) else None
        if found is None:
            return None
        self._sources |= found.sources
        work = found.work
        return Effort(work.model_flops, work.hardware_flops) if self.rating is None else self.rating.effort(work)

    def _tell(self) -> None:
        if self.news is not None:
            self.news()

    def _miss(self, shapes: tuple[ShapeKey, ...], each: Each, step: int) -> None:
        if not all(shapes):
            self.unknowns.note(UNREAD)
        elif self._books and (self._trained, each) not in self._books:
            self.unknowns.note("the model runs forward and backward in ways that were not counted")
            _, last = self.missing.pop(each, (0, 0))
            self.missing[each] = last, step
            if len(self.missing) > MOST_BOOKS:
                del self.missing[next(iter(self.missing))]
            self._tell()
        else:
            self.unknowns.shape(hash(shapes))


def _each(calls: Calls | None, batches: int) -> Each:
    """Compute the calls for each batch. If calls can't be seen, the model is taken to run once per batch."""
    if calls is None or not batches:
        return ONCE
    if calls.forwards % batches or calls.backwards % batches:
        return (*calls, batches)
    return max(1, calls.forwards // batches), max(1, calls.backwards // batches)
