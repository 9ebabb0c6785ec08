"""Counted FLOPs of batches by shape, looked up or scaled for other batches."""

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import NamedTuple, TypeVar

from perf_callbacks.flops.by_shape.scaling import BatchSize, Scaling
from perf_callbacks.flops.work import Work
from perf_callbacks.kernel.batches.tensors import VALUES, ShapeKey

MOST_COUNTS = 32  # for each family of batch shapes; the oldest is dropped

MOST_FAMILIES = 64

MOST_REFUTATIONS = 3  # after so many contradicting counts, a family is no longer scaled

SAME = 0.01  # largest relative difference of two counts that are treated as equal

ENOUGH_VALUES = 3
"""So many batches of equal shapes and FLOPs but other values, such as `cu_seqlens`, make all such batches equal."""

SCALED = "scaled"

_SECOND = ("labels", "decoder_input_ids")  # tensors that show the length of a decoder's input

_PACKED = "cu_seq"  # prefix of starts of packed sequences, such as `cu_seqlens`, whose number doesn't change the FLOPs

_Tensor = tuple[str, tuple[int, ...]]

K = TypeVar("K")
V = TypeVar("V")


class CountedWork(NamedTuple):
    """FLOPs, the step in which they were counted, and their sources."""

    work: Work
    step: int  # 0 if they were scaled
    sources: frozenset[str]


class ShapeTable:
    """Counted FLOPs by batch shape, for the same trained parameters and model calls per batch."""

    def __init__(self) -> None:
        self._families: dict[ShapeKey, _Family] = {}
        self._steps: dict[frozenset[tuple[ShapeKey, int]], CountedWork] = {}
        self._optimizer = Work()

    def learn(self, shapes: Sequence[ShapeKey], passes: Sequence[CountedWork]) -> None:
        """Each count includes a share of the optimizer's FLOPs."""
        now = together(passes)
        self._optimizer = now.work.select(optimizer=True)
        counts = [part._replace(work=part.work.select(optimizer=False)) for part in passes]
        by_shape = _shared(shapes, counts)
        if by_shape is None:
            keep(self._steps, alike(shapes), together(counts), MOST_COUNTS)
            return
        for shape, count in by_shape.items():
            family, size, values = _fold(shape)
            if family not in self._families:
                keep(self._families, family, _Family(), MOST_FAMILIES)
            self._families[family].learn(size, values, count)

    def step_work(self, shapes: Sequence[ShapeKey]) -> CountedWork | None:
        """Return the FLOPs of a step, with the optimizer's."""
        whole = self._steps.get(alike(shapes))
        counts = [whole] if whole is not None else [self.batch_work(shape) for shape in shapes]
        known_counts = [count for count in counts if count is not None]
        if not known_counts or len(known_counts) < len(counts):
            return None
        step = together(known_counts)
        return step._replace(work=Work.sum([step.work, self._optimizer]))

    def batch_work(self, shape: ShapeKey) -> CountedWork | None:
        family, size, values = _fold(shape)
        return self._families[family].look_up(size, values) if family in self._families else None

    def room(self, shape: ShapeKey) -> bool:
        family, *_ = _fold(shape)
        return family not in self._families or len(self._families[family].counts) < MOST_COUNTS


class _Family:
    """Batches that differ only in rows, lengths and values."""

    def __init__(self) -> None:
        self.counts: dict[tuple[BatchSize, ShapeKey], CountedWork] = {}
        self._values_matter = False
        self._refuted = 0
        self._scaling: Scaling | None = None
        self._scaled: dict[BatchSize, CountedWork | None] = {}

    def learn(self, size: BatchSize, values: ShapeKey, count: CountedWork) -> None:
        """Store a count. `MOST_REFUTATIONS` that contradict the scaled FLOPs end scaling."""
        scaled = self.look_up(size, values)
        self._refuted += scaled is not None and not scaled.step and scaled.work.cells != count.work.cells
        alike = [other for other in self._alike(size) if other.work.cells != count.work.cells]
        self._values_matter = self._values_matter or (bool(alike) and (size, values) not in self.counts)
        keep(self.counts, (size, values), count, MOST_COUNTS)
        self._scaling = None
        self._scaled.clear()

    def look_up(self, size: BatchSize, values: ShapeKey) -> CountedWork | None:
        if (size, values) in self.counts:
            return self.counts[size, values]
        if self._values_matter:
            return None
        if size not in self._scaled:
            alike = self._alike(size)
            scaled = self._scale(size) if not alike else alike[0] if len(alike) >= ENOUGH_VALUES else None
            keep(self._scaled, size, scaled, MOST_COUNTS)
        return self._scaled[size]

    def _alike(self, size: BatchSize) -> list[CountedWork]:
        return [count for (other, _), count in self.counts.items() if other == size]

    def _scale(self, size: BatchSize) -> CountedWork | None:
        if self._refuted >= MOST_REFUTATIONS:
            return None
        if self._scaling is None:
            self._scaling = Scaling({size: count.work for (size, _), count in self.counts.items()})
        work = self._scaling.predict(size)
        if work is None:
            return None
        sources = frozenset[str]().union(*[count.sources for count in self.counts.values()])
        return CountedWork(work, 0, sources | {SCALED})


def together(counts: Sequence[CountedWork]) -> CountedWork:
    steps = [count.step for count in counts]
    return CountedWork(
        Work.sum([count.work for count in counts]), min(steps), frozenset[str]().union(*[c.sources for c in counts])
    )


def largest_ratio(before: Work, now: Work) -> float:
    """Return the larger ratio of model or hardware FLOPs, at least 1, and infinite if only one step has FLOPs."""
    pairs = [(before.model_flops, now.model_flops), (before.hardware_flops, now.hardware_flops)]
    return max([max(pair) / min(pair) if min(pair) else inf if max(pair) else 1.0 for pair in pairs])


def alike(shapes: Sequence[ShapeKey]) -> frozenset[tuple[ShapeKey, int]]:
    return frozenset(Counter(shapes).items())


def keep(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Store a value, and drop the oldest beyond `most`."""
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]


def _shared(shapes: Sequence[ShapeKey], passes: Sequence[CountedWork]) -> dict[ShapeKey, CountedWork] | None:
    """Divide a step's FLOPs among its batch shapes. None if ambiguous."""
    if len(passes) == len(shapes):
        by_shape = dict(zip(shapes, passes, strict=True))
        same = all(by_shape[shape].work.cells == count.work.cells for shape, count in zip(shapes, passes, strict=True))
        return by_shape if same else None
    total = together(passes)
    if len(set(shapes)) > 1 or any(flops % len(shapes) for flops in total.work.cells.values()):
        return None
    share = Work({cell: flops // len(shapes) for cell, flops in total.work.cells.items()})
    return {shapes[0]: total._replace(work=share)}


def _fold(shape: ShapeKey) -> tuple[ShapeKey, BatchSize, ShapeKey]:
    """Return the family, the size and the values of a shape; a family's differ only in the latter two.

    >>> _fold((("input_ids", (2, 8)), ("mask", (2, 1, 8, 8)), ("labels", (2, 8)), ("scale", (3,))))[0]
    (('input_ids', (-1, -2)), ('mask', (-1, 1, -2, -2)), ('labels', (-1, -3)), ('scale', (3,)))
    """
    _, second = _guides(shape)
    size = BatchSize(*extent(shape), second[1][1] if second is not None else 0)
    values = tuple([entry for entry in shape if entry[0].endswith(VALUES)])
    named = shape[: len(shape) - len(values)]
    return tuple([(name, _template(name, sizes, size, second)) for name, sizes in named]), size, values


def extent(shape: ShapeKey) -> tuple[int, int]:
    """Return rows and length, from the token ids or else the first tensor. 0 means missing.

    >>> extent((("pixel_values", (4, 3, 8, 8)), ("input_ids", (4, 16))))
    (4, 16)
    """
    rows, length = (*_guides(shape)[0][1], 0, 0)[:2]
    return rows, length


def _guides(shape: ShapeKey) -> tuple[_Tensor, _Tensor | None]:
    first = next((tensor for tensor in shape if tensor[0].rpartition(".")[2] == "input_ids"), None)
    guide = first or next((tensor for tensor in shape if tensor[1]), ("", ()))
    rows = guide[1][:1]
    others = [tensor for tensor in shape if tensor is not guide and len(tensor[1]) > 1 and tensor[1][:1] == rows]
    named = [tensor for tensor in others if tensor[0].rpartition(".")[2] in _SECOND]
    return guide, next(reversed(named or others), None)


def _template(name: str, sizes: tuple[int, ...], size: BatchSize, second: _Tensor | None) -> tuple[int, ...]:
    if name.rpartition(".")[2].startswith(_PACKED):  # its size depends on the number of packed sequences
        return (-4,) * len(sizes)
    if sizes[:1] != (size.rows,):
        return sizes
    lengths = {size.other: -3, size.length: -2}
    if second is not None and (name == second[0] or name.startswith("decoder_")):
        lengths = {size.length: -2, size.other: -3}  # if both lengths are equal, the last entry wins
    return (-1, *[lengths.get(length, length) for length in sizes[1:]])
