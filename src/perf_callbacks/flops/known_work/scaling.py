"""Predict the FLOPs of a batch from the counted FLOPs of batches of other sizes.

A law says how FLOPs grow with the rows and lengths of a batch. The law is a sum of terms, and each term is a factor
times powers of rows and lengths. A law is used only if it fits all counts exactly, and if the number of counts exceeds
the number of terms. If two laws fit all counts but predict different FLOPs for a batch, the FLOPs of the batch are
unknown.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from perf_callbacks.flops.work import Cell, Kind, Work


class BatchSize(NamedTuple):
    """Size of a batch, which is its number of rows and its sequence lengths."""

    rows: int
    length: int
    """Length of the batch's token ids, or of its first tensor if there are no token ids. 0 means no length."""
    other: int
    """Second length of the batch, such as the length of a decoder's tokens. 0 means no second length."""


Term = tuple[int, int, int]
"""Exponents of rows, length and second length in a term of a law."""

Law = tuple[Term, ...]

_ROWS: Term = (1, 0, 0)
_TOKENS: Term = (1, 1, 0)
_OTHERS: Term = (1, 0, 1)
_ANGLES: Term = (0, 1, 0)
_SQUARE: Term = (1, 2, 0)

_LAWS: dict[Kind, tuple[Law, ...]] = {
    "matmul": ((_TOKENS,), (_TOKENS, _ROWS), (_TOKENS, _ANGLES), (_TOKENS, _OTHERS)),
    "attention": (
        (_SQUARE,),
        (_SQUARE, _TOKENS),
        (_ANGLES,),
        (_SQUARE, _ANGLES),
        (_SQUARE, (1, 0, 2), (1, 1, 1)),
    ),
    "convolution": ((_TOKENS,),),
}
"""Laws for each kind of operation, the simplest law first. The second law of "matmul" adds an output head that is
computed once per row. If the output head leaves out one token of each row, the factor of rows is negative. Further laws
add position embeddings that are computed once for all rows, or a decoder in addition to an encoder."""

_ALIKE: tuple[Law, ...] = ((_ROWS,), ((0, 0, 0), _ROWS))
"""Laws for batches of equal lengths, whose FLOPs depend only on the number of rows."""

_TERMS = tuple(sorted({(0, 0, 0), *[term for laws in _LAWS.values() for law in laws for term in law]}))

_AXES = range(3)


class Scaling:
    """Predicts the FLOPs of a batch size from counts of other batch sizes. FLOPs that fit no law are unknown."""

    def __init__(self, counts: Mapping[BatchSize, Work]) -> None:
        self._counts = counts
        self._cells = {cell for work in counts.values() for cell in work.cells}
        self._fits: dict[tuple[Cell, tuple[int, ...]], _Fit | None] = {}
        self._alike: dict[tuple[int, ...], list[BatchSize]] = {}
        for size in counts:
            self._alike.setdefault(size[1:], []).append(size)

    def predict(self, size: BatchSize) -> Work | None:
        """Return the predicted FLOPs of a batch of this size, or None if they are unknown."""
        cells: dict[Cell, int] = {}
        for cell in self._cells:
            fit = self._fit_alike(cell, size[1:]) or self._fit(cell, (), _LAWS[cell.kind], self._counts)
            flops = None if fit is None else fit.value(size)
            if flops is None:
                return None
            cells[cell] = flops
        return Work(cells) if cells else None

    def _fit_alike(self, cell: Cell, lengths: tuple[int, ...]) -> "_Fit | None":
        """Return the law that fits the counts of batches with exactly these lengths, or None if no law fits."""
        sizes = self._alike.get(lengths, ())
        return self._fit(cell, lengths, _ALIKE, sizes) if len(sizes) > 1 else None

    def _fit(
        self, cell: Cell, key: tuple[int, ...], laws: tuple[Law, ...], sizes: Iterable[BatchSize]
    ) -> "_Fit | None":
        """Return the simplest law that fits the counts of a phase, dtype and kind, or None if no law fits."""
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
        """For each of rows, length and second length, the values for which the law holds. None means all values."""
        self.sound = all(
            pinned is None or len({term[axis] for term in law}) == 1 for axis, pinned in enumerate(self._pinned)
        )
        rivals = {term: _exactly({size: _power(size, term) for size in counts}, law) for term in _TERMS}
        self._rivals = {term: found for term, found in rivals.items() if found is not None and term not in law}
        """Terms that fit the counts as well as this law. For example, if every counted batch has 1,000 tokens, a
        constant term fits as well as a term that grows with the number of tokens."""

    def value(self, size: BatchSize) -> int | None:
        """Return the FLOPs of a batch of this size, or None if they are unknown."""
        if any(pinned is not None and size[axis] not in pinned for axis, pinned in enumerate(self._pinned)):
            return None
        if any(_sum(factors, self._law, size) != _power(size, term) for term, factors in self._rivals.items()):
            return None
        flops = _sum(self._factors, self._law, size)
        return int(flops) if flops.denominator == 1 else None


def _fitted(counts: Mapping[BatchSize, int], law: Law) -> _Fit | None:
    """Return a law fitted to counts. Return None if a count contradicts the law, or if there are too few counts."""
    factors = _exactly(counts, law) if len(counts) > len(law) else None
    if factors is None:
        return None
    fit = _Fit(law, factors, counts)
    return fit if fit.sound else None


def _confirmed(counts: Mapping[BatchSize, int], law: Law, axis: int) -> bool:
    """Return True if the counts confirm how a law depends on one axis of the batch size.

    A law is confirmed if the counts still determine its factors after all counts of one size along the axis are left
    out.
    """
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
    """Compute the factors of a law by Gaussian elimination. Return None if the counts don't determine all factors."""
    rows: dict[int, list[Fraction]] = {}  # by pivot column: 1 there, 0 in the pivot columns of all other rows
    for size, flops in counts.items():
        row = [Fraction(_power(size, term)) for term in law] + [Fraction(flops)]
        for column, known in rows.items():
            row = _minus(row, row[column], known)
        pivot = next((column for column in range(len(law)) if row[column]), None)
        if pivot is not None:
            row = [value / row[pivot] for value in row]
            rows = {column: _minus(known, known[pivot], row) for column, known in rows.items()} | {pivot: row}
        if len(rows) == len(law):
            return tuple([rows[column][-1] for column in range(len(law))])
    return None


def _minus(row: list[Fraction], factor: Fraction, other: list[Fraction]) -> list[Fraction]:
    return [a - factor * b for a, b in zip(row, other, strict=True)]


def _sum(factors: tuple[Fraction, ...], law: Law, size: BatchSize) -> Fraction:
    return sum([factor * _power(size, term) for factor, term in zip(factors, law, strict=True)], Fraction())


def _power(size: BatchSize, term: Term) -> int:
    return int(size[0] ** term[0] * size[1] ** term[1] * size[2] ** term[2])
