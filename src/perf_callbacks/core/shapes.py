"""The work of a batch by its shape: counted once, and from then on looked up, or scaled where that is exact."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from perf_callbacks.core.batches import ShapeKey
from perf_callbacks.core.rating import Rating
from perf_callbacks.core.work import Cell, Effort, Kind, Work

_MOST_SHAPES = 4096

_Size = tuple[int, int]
"""Rows of a batch, and their length."""

_Law = tuple[_Size, ...]
"""Work as a sum of terms, each of them these powers of rows and length, times a factor."""

_LAWS: dict[Kind, tuple[_Law, ...]] = {
    "matmul": (((1, 1),), ((1, 0), (1, 1)), ((0, 1), (1, 1))),
    "attention": (((1, 2),), ((1, 1), (1, 2)), ((0, 1),), ((0, 1), (1, 2))),
    "convolution": (((1, 1),),),
}
"""How work may grow, the simplest first. What grows in two ways is a sum: of layers that see every token and a head
that sees rows, or of rows and what is done once for all of them, as with the angles of positions."""

_TERMS = {term for laws in _LAWS.values() for law in laws for term in law} | {(0, 0)}

_OF_ONE_LENGTH: tuple[_Law, ...] = (((1, 0),), ((0, 0), (1, 0)))


class ShapedWork:
    """What batches of each shape take.

    A new shape is scaled from counted ones once another count has confirmed how: rows that are as long, by their
    number; longer or shorter ones by a + b * length, or whatever else fits counts exactly, and more of them than it
    takes to be found. What fits nothing is unknown until it is counted itself.
    """

    def __init__(self) -> None:
        self.rating: Rating | None = None
        """What work is compared with. None: none was counted."""
        self.refuted = False
        """Whether a measured peak turned out to be none."""
        self.optimizer = Work()
        """What the optimizer does in each step."""
        self._families: dict[ShapeKey, dict[_Size, Work]] = {}
        self._steps: dict[frozenset[tuple[ShapeKey, int]], Work] = {}
        self._known: dict[ShapeKey, Work | None] = {}
        self._efforts: dict[tuple[ShapeKey, ...], Effort | None] = {}

    def rate(self, rating: Rating) -> None:
        """Compare work with this."""
        self.rating = rating
        self._efforts.clear()

    def judge(self, effort: Effort, seconds: float) -> None:
        """Some steps took this long: a measured peak that is lower than what they did is none."""
        if self.rating is not None and self.rating.refuted(effort, seconds):
            self.refuted = True
            self.rate(self.rating.without_peak())

    def learn(self, shapes: Sequence[ShapeKey], passes: Sequence[Work]) -> None:
        """The batches of a counted step, and the work of each forward and its backward."""
        self._forget_guesses()
        by_shape = _shared(shapes, passes)
        if by_shape is None:
            self._steps[frozenset(Counter(shapes).items())] = Work.sum(passes)
            return
        for shape, work in by_shape.items():
            family, size = _fold(shape)
            self._families.setdefault(family, {})[size] = work

    def of(self, shapes: Sequence[ShapeKey]) -> Effort | None:
        """The work of a step with batches of these shapes; None: unknown."""
        key = tuple(shapes)
        if key not in self._efforts:
            if len(self._efforts) >= _MOST_SHAPES:
                self._efforts.clear()
            self._efforts[key] = self._effort(shapes)
        return self._efforts[key]

    def knows(self, shape: ShapeKey) -> bool:
        """Whether the work of a batch of this shape is known, or can be scaled."""
        return self._one(shape) is not None

    def _effort(self, shapes: Sequence[ShapeKey]) -> Effort | None:
        whole = self._steps.get(frozenset(Counter(shapes).items()))
        works = [whole] if whole is not None else [self._one(shape) for shape in shapes]
        known = [work for work in works if work is not None]
        if not known or len(known) < len(works):
            return None
        total = Work.sum([*known, self.optimizer])
        return Effort(total.model_flops, total.hardware_flops) if self.rating is None else self.rating.effort(total)

    def _one(self, shape: ShapeKey) -> Work | None:
        if shape not in self._known:
            if len(self._known) >= _MOST_SHAPES:
                self._known.clear()
            family, size = _fold(shape)
            counted = self._families.get(family, {})
            self._known[shape] = counted.get(size) or _scaled(counted, size)
        return self._known[shape]

    def _forget_guesses(self) -> None:
        self._known.clear()
        self._efforts.clear()


def _shared(shapes: Sequence[ShapeKey], passes: Sequence[Work]) -> dict[ShapeKey, Work] | None:
    """The work of one batch of each shape; None where it can't be told."""
    if not shapes or not all(shapes):
        return None
    if len(passes) == len(shapes):
        by_shape = dict(zip(shapes, passes, strict=True))
        same = all(by_shape[shape].cells == work.cells for shape, work in zip(shapes, passes, strict=True))
        return by_shape if same else None
    total = Work.sum(passes)
    if len(set(shapes)) > 1 or any(flops % len(shapes) for flops in total.cells.values()):
        return None
    return {shapes[0]: Work({cell: flops // len(shapes) for cell, flops in total.cells.items()})}


def _fold(shape: ShapeKey) -> tuple[ShapeKey, _Size]:
    """A shape as its rows and their length, and the family of shapes that differ in nothing else.

    >>> _fold((("input_ids", (2, 8)), ("mask", (2, 1, 8, 8)), ("scale", (3,))))
    ((('input_ids', (-1, -2)), ('mask', (-1, 1, -2, -2)), ('scale', (3,))), (2, 8))
    """
    rows, length = extent(shape)
    folded = tuple((name, _template(sizes, rows, length)) for name, sizes in shape)
    return folded, (rows, length)


def extent(shape: ShapeKey) -> _Size:
    """The rows of a batch, and how long they are, by its token ids or else its first tensor; 0: it has none.

    >>> extent((("pixel_values", (4, 3, 8, 8)), ("input_ids", (4, 16))))
    (4, 16)
    """
    named = (sizes for name, sizes in shape if name.rpartition(".")[2] == "input_ids")
    guide = next(named, None) or next((sizes for _, sizes in shape if sizes), ())
    rows, length = (*guide, 0, 0)[:2]
    return rows, length


def _template(sizes: tuple[int, ...], rows: int, length: int) -> tuple[int, ...]:
    if sizes[:1] == (rows,):
        return (-1, *(-2 if size == length else size for size in sizes[1:]))
    return sizes


def _scaled(counted: Mapping[_Size, Work], size: _Size) -> Work | None:
    """What was counted, scaled to another size."""
    cells: dict[Cell, int] = {}
    for cell in {cell for work in counted.values() for cell in work.cells}:
        flops = _predicted({of: work.cells.get(cell, 0) for of, work in counted.items()}, size, _LAWS[cell.kind])
        if flops is None or flops.denominator != 1:
            return None
        cells[cell] = int(flops)
    return Work(cells) if cells else None


def _predicted(counts: Mapping[_Size, int], size: _Size, laws: Iterable[_Law]) -> Fraction | None:
    """By what was counted of this length, or else by all that was counted."""
    as_long = {of: flops for of, flops in counts.items() if of[1] == size[1]}
    for some, known in ((as_long, _OF_ONE_LENGTH), (counts, laws)):
        for law in known:
            factors = _fit(some, law) if len(some) > len(law) else None
            if factors is not None and all(_confirmed(some, size, law, axis) for axis in (0, 1)):
                return _sum(factors, law, size) if _alone(some, size, law) else None
    return None


def _alone(counts: Iterable[_Size], size: _Size, law: _Law) -> bool:
    """Whether no other term looks like the law wherever it was counted, and not here.

    Where batches have as many tokens each time, what grows with tokens can't be told from what never grows.
    """
    for term in _TERMS.difference(law):
        factors = _fit({of: _power(of, term) for of in counts}, law)
        if factors is not None and _sum(factors, law, size) != _power(size, term):
            return False
    return True


def _confirmed(counts: Mapping[_Size, int], size: _Size, law: _Law, axis: int) -> bool:
    """Whether a law that holds could have failed to in this direction: some count is not among those it is found by.

    There is no need of that where nothing goes that way.
    """
    there, powers = {of[axis] for of in counts}, {term[axis] for term in law}
    if len(powers) == 1 and size[axis] in there:
        return True
    rests = ({of: flops for of, flops in counts.items() if of[axis] != left_out} for left_out in there)
    return any(_solve(rest, law) is not None for rest in rests)


def _fit(counts: Mapping[_Size, int], law: _Law) -> tuple[Fraction, ...] | None:
    """The factors of a law with one or two terms, if it holds for every count."""
    factors = _solve(counts, law)
    holds = factors is not None and all(_sum(factors, law, of) == flops for of, flops in counts.items())
    return factors if holds else None


def _solve(counts: Mapping[_Size, int], law: _Law) -> tuple[Fraction, ...] | None:
    rows = [(*(_power(of, term) for term in law), flops) for of, flops in counts.items()]
    if len(law) == 1:
        return next(((Fraction(flops, term),) for term, flops in rows if term), None)
    a, b, x = next(
        (row for row in rows if any(row[:2])), (0, 0, 0)
    )  # what is of no use with this one is of none at all
    for c, d, y in rows:
        determinant = a * d - b * c
        if determinant:
            return Fraction(x * d - y * b, determinant), Fraction(a * y - c * x, determinant)
    return None


def _sum(factors: Iterable[Fraction], law: _Law, size: _Size) -> Fraction:
    return sum((factor * _power(size, term) for factor, term in zip(factors, law, strict=True)), Fraction())


def _power(size: _Size, term: _Size) -> int:
    return int(size[0] ** term[0] * size[1] ** term[1])
