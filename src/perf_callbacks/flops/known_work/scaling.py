"""Laws by which work grows with the size of a batch: fitted to counts, then evaluated for other sizes.

A law is a sum of terms. Each term is a factor times powers of rows and lengths. A law is used only if all counts fit
exactly, if there are more counts than factors, and if no other term fits the counts but grows differently.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from perf_callbacks.flops.work import Cell, Kind, Work


class BatchSize(NamedTuple):
    """Rows and lengths of a batch."""

    rows: int
    length: int
    """Length of its token ids, or of its first tensor; 0: it has none."""
    other: int
    """Second length, such as that of a decoder's tokens; 0: there is none."""


Term = tuple[int, int, int]
"""Powers of rows, length and second length."""

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
"""Laws of each kind, the simplest first. The first law has products with weights, or attention. The second law of
"matmul" adds a head that sees rows, or all tokens of a row except one (then the factor is negative). Further laws add
angles of positions that are computed once for all rows, or a decoder beside an encoder."""

_ALIKE: tuple[Law, ...] = ((_ROWS,), ((0, 0, 0), _ROWS))
"""Laws for batches that differ only in their number of rows."""

_TERMS = tuple(sorted({(0, 0, 0), *[term for laws in _LAWS.values() for law in laws for term in law]}))

_AXES = range(3)


class Scaling:
    """Predicts the work of a size from counts of other sizes. Work that no law explains is unknown."""

    def __init__(self, counts: Mapping[BatchSize, Work]) -> None:
        self._counts = counts
        self._cells = {cell for work in counts.values() for cell in work.cells}
        self._fits: dict[tuple[Cell, tuple[int, ...]], _Fit | None] = {}
        self._alike: dict[tuple[int, ...], list[BatchSize]] = {}
        for size in counts:
            self._alike.setdefault(size[1:], []).append(size)

    def predict(self, size: BatchSize) -> Work | None:
        """Predict the work of a batch of this size; None: unknown."""
        cells: dict[Cell, int] = {}
        for cell in self._cells:
            fit = self._fit_alike(cell, size[1:]) or self._fit(cell, (), _LAWS[cell.kind], self._counts)
            flops = None if fit is None else fit.value(size)
            if flops is None:
                return None
            cells[cell] = flops
        return Work(cells) if cells else None

    def _fit_alike(self, cell: Cell, lengths: tuple[int, ...]) -> "_Fit | None":
        """Fit a law of rows to counts of exactly these lengths."""
        sizes = self._alike.get(lengths, ())
        return self._fit(cell, lengths, _ALIKE, sizes) if len(sizes) > 1 else None

    def _fit(
        self, cell: Cell, key: tuple[int, ...], laws: tuple[Law, ...], sizes: Iterable[BatchSize]
    ) -> "_Fit | None":
        """Return the simplest law that fits the counts of a cell; None: no law fits."""
        if (cell, key) not in self._fits:
            counts = {size: self._counts[size].cells.get(cell, 0) for size in sizes}
            fits = (_fitted(counts, law) for law in laws)
            self._fits[cell, key] = next((fit for fit in fits if fit is not None), None)
        return self._fits[cell, key]


class _Fit:
    """A law with its factors."""

    def __init__(self, law: Law, factors: tuple[Fraction, ...], counts: Mapping[BatchSize, int]) -> None:
        self._law = law
        self._factors = factors
        self._pinned = [None if _confirmed(counts, law, axis) else {size[axis] for size in counts} for axis in _AXES]
        """Sizes along each axis for which the law holds; None: for all sizes."""
        self.sound = all(
            pinned is None or len({term[axis] for term in law}) == 1 for axis, pinned in enumerate(self._pinned)
        )
        rivals = {term: _exactly({size: _power(size, term) for size in counts}, law) for term in _TERMS}
        self._rivals = {term: found for term, found in rivals.items() if found is not None and term not in law}
        """Terms that the counts can't tell from this law. For example, if all batches have the same number of tokens,
        work that grows with tokens looks like work that never grows."""

    def value(self, size: BatchSize) -> int | None:
        """Compute the FLOPs of this size; None: unknown."""
        if any(pinned is not None and size[axis] not in pinned for axis, pinned in enumerate(self._pinned)):
            return None
        if any(_sum(factors, self._law, size) != _power(size, term) for term, factors in self._rivals.items()):
            return None
        flops = _sum(self._factors, self._law, size)
        return int(flops) if flops.denominator == 1 else None


def _fitted(counts: Mapping[BatchSize, int], law: Law) -> _Fit | None:
    """Fit a law. None if a count disagrees, or if no count could have contradicted the law."""
    if len(counts) <= len(law):
        return None
    factors = _exactly(counts, law)
    if factors is None:
        return None
    fit = _Fit(law, factors, counts)
    return fit if fit.sound else None


def _confirmed(counts: Mapping[BatchSize, int], law: Law, axis: int) -> bool:
    """Return True if the counts of one size along this axis confirm a law that the other counts solve alone."""
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
    """Solve for the factors of a law by elimination; None: too few counts are independent."""
    found: list[tuple[int, list[Fraction]]] = []  # pivot column, and its row: 1 there, 0 in earlier columns
    for size, flops in counts.items():
        row = [Fraction(_power(size, term)) for term in law] + [Fraction(flops)]
        for column, known in found:
            if row[column]:
                row = [a - row[column] * b for a, b in zip(row, known, strict=True)]
        pivot = next((column for column in range(len(law)) if row[column]), None)
        if pivot is None:
            continue
        found.append((pivot, [value / row[pivot] for value in row]))
        if len(found) == len(law):
            break
    if len(found) < len(law):
        return None
    factors: dict[int, Fraction] = {}
    for column, row in reversed(found):
        factors[column] = row[-1] - sum([row[other] * factor for other, factor in factors.items()], Fraction())
    return tuple([factors[column] for column in range(len(law))])


def _sum(factors: tuple[Fraction, ...], law: Law, size: BatchSize) -> Fraction:
    return sum([factor * _power(size, term) for factor, term in zip(factors, law, strict=True)], Fraction())


def _power(size: BatchSize, term: Term) -> int:
    return int(size[0] ** term[0] * size[1] ** term[1] * size[2] ** term[2])
