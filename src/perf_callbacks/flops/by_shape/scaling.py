"""Predict the FLOPs of a batch from counts of batches of other sizes.

A law is a sum of terms: a factor times powers of rows and lengths. It is used only if it fits all counts exactly, and
there are more counts than terms. If two such laws predict different FLOPs for a batch, they are unknown.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from perf_callbacks.flops.work import Kind, Work, WorkKey


class BatchSize(NamedTuple):
    """Rows and sequence lengths of a batch."""

    rows: int
    length: int  # of the token ids, or else of the first tensor; 0 without one
    other: int  # second length, such as a decoder's; 0 without one


class Term(NamedTuple):
    """Exponents."""

    rows: int = 0
    length: int = 0
    other: int = 0


Law = tuple[Term, ...]

_ONE = Term()
_ROWS = Term(rows=1)
_TOKENS = Term(rows=1, length=1)
_OTHERS = Term(rows=1, other=1)
_ANGLES = Term(length=1)
_SQUARE = Term(rows=1, length=2)

_LAWS: dict[Kind, tuple[Law, ...]] = {
    "matmul": ((_TOKENS,), (_TOKENS, _ROWS), (_TOKENS, _ANGLES), (_TOKENS, _OTHERS)),
    "attention": (
        (_SQUARE,),
        (_SQUARE, _TOKENS),
        (_ANGLES,),
        (_SQUARE, _ANGLES),
        (_SQUARE, Term(rows=1, other=2), Term(rows=1, length=1, other=1)),
    ),
    "convolution": ((_TOKENS,),),
}
"""The simplest first. The second law of "matmul" adds an output head computed once per row, with a negative factor if
it leaves out one token of each. Further ones add position embeddings computed once for all rows, or a decoder."""

_ALIKE: tuple[Law, ...] = ((_ROWS,), (_ONE, _ROWS))
"""For batches of equal lengths, whose FLOPs depend only on the rows."""

_TERMS = tuple(sorted({_ONE, *[term for laws in _LAWS.values() for law in laws for term in law]}))

_AXES = range(3)


class Scaling:
    """Predicts the FLOPs of a batch size from counts of others. What fits no law is unknown."""

    def __init__(self, counts: Mapping[BatchSize, Work]) -> None:
        self._counts = counts
        self._cells = {cell for work in counts.values() for cell in work.cells}
        self._fits: dict[tuple[WorkKey, tuple[int, ...]], _Fit | None] = {}
        self._alike: dict[tuple[int, ...], list[BatchSize]] = {}
        for size in counts:
            self._alike.setdefault(size[1:], []).append(size)

    def predict(self, size: BatchSize) -> Work | None:
        cells: dict[WorkKey, int] = {}
        for cell in self._cells:
            fit = self._fit_alike(cell, size[1:]) or self._fit(cell, (), _LAWS[cell.kind], self._counts)
            flops = None if fit is None else fit.value(size)
            if flops is None:
                return None
            cells[cell] = flops
        return Work(cells) if cells else None

    def _fit_alike(self, cell: WorkKey, lengths: tuple[int, ...]) -> "_Fit | None":
        sizes = self._alike.get(lengths, ())
        return self._fit(cell, lengths, _ALIKE, sizes) if len(sizes) > 1 else None

    def _fit(
        self, cell: WorkKey, key: tuple[int, ...], laws: tuple[Law, ...], sizes: Iterable[BatchSize]
    ) -> "_Fit | None":
        if (cell, key) not in self._fits:
            counts = {size: self._counts[size].cells.get(cell, 0) for size in sizes}
            fits = (_fitted(counts, law) for law in laws)
            self._fits[cell, key] = next((fit for fit in fits if fit is not None), None)
        return self._fits[cell, key]


class _Fit:
    """Law whose factors were fitted to counts."""

    def __init__(self, law: Law, factors: tuple[Fraction, ...], counts: Mapping[BatchSize, int]) -> None:
        self._law = law
        self._factors = factors
        self._pinned = [None if _confirmed(counts, law, axis) else {size[axis] for size in counts} for axis in _AXES]
        """For rows, length and second length: values for which the law holds; None means all."""
        self.sound = all(
            pinned is None or len({term[axis] for term in law}) == 1 for axis, pinned in enumerate(self._pinned)
        )
        rivals = {term: _exactly({size: _power(size, term) for size in counts}, law) for term in _TERMS}
        self._rivals = {term: factors for term, factors in rivals.items() if factors is not None and term not in law}
        """Terms that fit as well as this law: if every counted batch has 1,000 tokens, a constant fits as well as a
        term that grows with them."""

    def value(self, size: BatchSize) -> int | None:
        if any(pinned is not None and size[axis] not in pinned for axis, pinned in enumerate(self._pinned)):
            return None
        if any(_sum(factors, self._law, size) != _power(size, term) for term, factors in self._rivals.items()):
            return None
        flops = _sum(self._factors, self._law, size)
        return int(flops) if flops.denominator == 1 else None


def _fitted(counts: Mapping[BatchSize, int], law: Law) -> _Fit | None:
    """Return None if a count contradicts the law, or if there are too few."""
    factors = _exactly(counts, law) if len(counts) > len(law) else None
    if factors is None:
        return None
    fit = _Fit(law, factors, counts)
    return fit if fit.sound else None


def _confirmed(counts: Mapping[BatchSize, int], law: Law, axis: int) -> bool:
    """Return True if the counts determine all factors even without those of one size along the axis."""
    for left_out in {size[axis] for size in counts}:
        rest = {size: flops for size, flops in counts.items() if size[axis] != left_out}
        if _solved(rest, law) is not None:
            return True
    return False


def _exactly(counts: Mapping[BatchSize, int], law: Law) -> tuple[Fraction, ...] | None:
    factors = _solved(counts, law)
    holds = factors is not None and all(_sum(factors, law, size) == flops for size, flops in counts.items())
    return factors if holds else None


def _solved(counts: Mapping[BatchSize, int], law: Law) -> tuple[Fraction, ...] | None:
    """Return the factors by Gaussian elimination, or None if the counts don't determine all."""
    rows: dict[int, list[Fraction]] = {}  # by pivot column: 1 there, 0 in the pivot columns of all other rows
    for size, flops in counts.items():
        row = [Fraction(_power(size, term)) for term in law] + [Fraction(flops)]
        for column, pivot_row in rows.items():
            row = _minus(row, row[column], pivot_row)
        pivot = next((column for column in range(len(law)) if row[column]), None)
        if pivot is not None:
            row = [value / row[pivot] for value in row]
            rows = {column: _minus(pivot_row, pivot_row[pivot], row) for column, pivot_row in rows.items()} | {
                pivot: row
            }
        if len(rows) == len(law):
            return tuple([rows[column][-1] for column in range(len(law))])
    return None


def _minus(row: list[Fraction], factor: Fraction, other: list[Fraction]) -> list[Fraction]:
    return [a - factor * b for a, b in zip(row, other, strict=True)]


def _sum(factors: tuple[Fraction, ...], law: Law, size: BatchSize) -> Fraction:
    return sum([factor * _power(size, term) for factor, term in zip(factors, law, strict=True)], Fraction())


def _power(size: BatchSize, term: Term) -> int:
    return int(size[0] ** term[0] * size[1] ** term[1] * size[2] ** term[2])
