"""The work of a batch by its shape: counted once, and from then on looked up, or scaled where that is exact."""

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import combinations

from perf_callbacks.core.batches import ShapeKey
from perf_callbacks.core.rating import Rating
from perf_callbacks.core.work import Cell, Effort, Kind, Work

_MOST_SHAPES = 4096

_POWERS: dict[Kind, tuple[tuple[int, ...], ...]] = {
    "matmul": ((1,), (0, 1)),
    "attention": ((2,), (1, 2)),
    "convolution": ((1,),),
}
"""How the work of a row may grow with its length: as these powers of it, the simplest first. What grows as two of them
is a sum, as of layers that see every token and a head that sees a row."""


class ShapedWork:
    """What batches of each shape take.

    A new shape is scaled from counted ones once another count has confirmed how: rows that are as long, by their
    number; longer or shorter ones by a + b * length, or whatever else fits every count exactly. What fits nothing is
    unknown until it is counted itself.
    """

    def __init__(self) -> None:
        self.rating: Rating | None = None
        """What work is compared with. None: none was counted."""
        self.refuted = False
        """Whether a measured peak turned out to be none."""
        self.optimizer = Work()
        """What the optimizer does in each step."""
        self._families: dict[ShapeKey, dict[tuple[int, int], Work]] = {}
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
            self._known[shape] = counted.get(size) or (_scaled(counted, *size) if counted else None)
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


def _fold(shape: ShapeKey) -> tuple[ShapeKey, tuple[int, int]]:
    """A shape as its rows and their length, and the family of shapes that differ in nothing else.

    >>> _fold((("input_ids", (2, 8)), ("mask", (2, 1, 8, 8)), ("scale", (3,))))
    ((('input_ids', (-1, -2)), ('mask', (-1, 1, -2, -2)), ('scale', (3,))), (2, 8))
    """
    rows, length = extent(shape)
    folded = tuple((name, _template(sizes, rows, length)) for name, sizes in shape)
    return folded, (rows, length)


def extent(shape: ShapeKey) -> tuple[int, int]:
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


def _scaled(counted: dict[tuple[int, int], Work], rows: int, length: int) -> Work | None:
    """What was counted, scaled to other rows. Only in directions in which the counts themselves differ."""
    lengths = {counted_length for _, counted_length in counted}
    if (rows not in {counted_rows for counted_rows, _ in counted} and len({r for r, _ in counted}) == 1) or (
        length not in lengths and len(lengths) == 1
    ):
        return None
    cells: dict[Cell, int] = {}
    for cell in {cell for work in counted.values() for cell in work.cells}:
        points = [(at, Fraction(work.cells.get(cell, 0), of)) for (of, at), work in counted.items()]
        per_row = _per_row(points, length, _POWERS[cell.kind])
        flops = None if per_row is None else per_row * rows
        if flops is None or flops.denominator != 1:
            return None
        cells[cell] = int(flops)
    return Work(cells)


def _per_row(points: list[tuple[int, Fraction]], length: int, laws: Iterable[tuple[int, ...]]) -> Fraction | None:
    """The work of a row of this length, by the simplest law that every count obeys and more counts than it needs."""
    there = [work for at, work in points if at == length]
    if len(there) > 1:
        return there[0] if len(set(there)) == 1 else None
    lengths = len({at for at, _ in points})
    for powers in laws:
        if len(points) > len(powers) and (lengths > len(powers) or (there and len(powers) == 1)):
            found = _fit(points, powers)
            if found is not None:
                return sum((factor * length**power for factor, power in zip(found, powers, strict=True)), Fraction())
    return None


def _fit(points: list[tuple[int, Fraction]], powers: tuple[int, ...]) -> tuple[Fraction, ...] | None:
    """The factors of a law with one or two powers, if it holds at every point."""
    factors = _solve(points, powers)
    if factors is None:
        return None
    holds = all(sum(f * at**power for f, power in zip(factors, powers, strict=True)) == work for at, work in points)
    return factors if holds else None


def _solve(points: list[tuple[int, Fraction]], powers: tuple[int, ...]) -> tuple[Fraction, ...] | None:
    if len(powers) == 1:
        at, work = points[0]
        return (work / at ** powers[0],) if at else None
    low, high = powers
    for (a, x), (b, y) in combinations(points, 2):
        determinant = a**low * b**high - b**low * a**high
        if determinant:
            return (x * b**high - y * a**high) / determinant, (y * a**low - x * b**low) / determinant
    return None
