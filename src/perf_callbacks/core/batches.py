"""How much is in a batch: read off its tensors by shape, without waiting for any of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

from perf_callbacks.core.batch_tensors import Leaf, is_array, leaves
from perf_callbacks.core.sample_counts import matching, samples
from perf_callbacks.core.steps import plus

ShapeKey = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of the tensors in a batch."""

_MOST_SHAPES = 1024

_MOST_NOTED = 256
"""Batches of a counted step whose tensors are compared with what was looked up."""

_ROWS = {tuple, list}
_shape = attrgetter("shape")


class Batch(NamedTuple):
    """Amounts of one micro-batch, which it adds to its step."""

    samples: int | None
    """Rows; None where the tensors don't agree on them."""
    tokens: int | None
    """Elements of the token ids; None where there are none, or nobody has seen yet which tensor they are."""
    useful_tokens: Any
    """Elements that the mask keeps: a number that may still be under way on the device. None where there is no mask."""
    shape: ShapeKey
    """Empty where it can't be read."""


class Lookup(NamedTuple):
    """An embedding that the counted step was seen to look up."""

    table: int
    """Address of its rows."""
    rows: int
    """Its vocabulary."""
    address: int
    """Address of the indices."""
    elements: int
    """How many they are."""


class _Noted(NamedTuple):
    """The integers of a batch that was read in a counted step."""

    names: tuple[str, ...]
    """All tensors of the batch."""
    integers: tuple[tuple[str, int | None, int], ...]
    """Name, address and elements of each tensor of integers."""


def together(batches: Sequence[Batch]) -> tuple[int | None, int | None, Any]:
    """Samples, tokens and useful tokens of some batches."""
    if len(batches) == 1:
        return batches[0][:3]
    return (
        plus(*[batch.samples for batch in batches]),
        plus(*[batch.tokens for batch in batches]),
        plus(*[batch.useful_tokens for batch in batches]),
    )


def nothing(batch: Batch) -> tuple[int | None, int | None, Any]:
    """The amounts of no batch, where others are like this one: what it doesn't tell is unknown of them too.

    >>> nothing(Batch(4, None, None, ()))
    (0, None, None)
    """
    return batch.samples and 0, batch.tokens and 0, None if batch.useful_tokens is None else 0


class BatchReader:
    """Reads batches of any form: tensors or arrays in mappings, tuples, lists, objects; a list of rows.

    A shape that was seen before costs a look-up. The shapes seen are kept, for whoever counts FLOPs by shape.

    >>> BatchReader().read([{"prompt": "a"}, {"prompt": "b"}])
    Batch(samples=2, tokens=None, useful_tokens=None, shape=())
    """

    def __init__(self) -> None:
        self.seen: dict[ShapeKey, tuple[Batch, tuple[str, ...]]] = {}
        """For each shape its batch, and the names of its masks."""
        self.news: Callable[[ShapeKey, Mapping[str, Any]], object] | None = None
        """Told of a shape that was not seen before, or was forgotten, before the batch of these tensors is used."""
        self.several = False
        """Each batch holds one of each of several loaders: their samples add up."""
        self.unread: str | None = None
        """The type of the last batch whose shapes couldn't be read."""
        self._known: dict[tuple[Any, ...], Batch | tuple[Batch, tuple[str, ...]]] = {}  # without masks, just the batch
        self._ids: dict[tuple[str, ...], tuple[str, ...]] = {}  # of batches with these tensors, those of token ids
        self._noted: list[_Noted] | None = None

    def read(self, batch: Any) -> Batch:
        """Samples, tokens and shape of a batch."""
        key: tuple[Any, ...] | None = None
        try:
            key = tuple(map(_shape, batch)) if type(batch) in _ROWS else (*batch.keys(), *map(_shape, batch.values()))
            found = self._known[key]
            if isinstance(found, Batch):
                return found
            known, masks = found
        except (AttributeError, KeyError, TypeError, RuntimeError):  # the last one by nested tensors, which have none
            known, masks, batch = self._look(batch, key)
        if not masks:
            return known
        useful = _kept(batch[masks[0]])
        for name in masks[1:]:
            useful = plus(useful, _kept(batch[name]))
        return Batch(known.samples, known.tokens, useful, known.shape)

    def forget(self, shape: ShapeKey) -> None:
        """The next batch of this shape is news."""
        self.seen.pop(shape, None)
        found = {key: known if isinstance(known, Batch) else known[0] for key, known in self._known.items()}
        self._known = {key: known for key, known in self._known.items() if found[key].shape != shape}

    def note(self) -> None:
        """Note where the tensors of the next batches lie, until `look_up` tells which of them were looked up."""
        self._noted = []
        self._known.clear()

    def look_up(self, lookups: Iterable[Lookup]) -> bool:
        """Learn which tensors are token ids, by the embeddings looked up since `note`; whether that was news.

        The largest vocabulary is that of the tokens. Batches with the same tensors, of whatever size, have theirs in
        the same place; batches with `input_ids` have said it themselves.
        """
        noted, self._noted = self._noted or [], None
        every = {*lookups}
        largest = max(every, key=lambda one: one.rows, default=None)
        indices = {(one.address, one.elements) for one in every if largest and one.table == largest.table}
        fresh: dict[tuple[str, ...], tuple[str, ...]] = {}
        for batch in noted:
            if batch.names not in self._ids and not matching(batch.names, "input_ids"):
                names = _looked_up(batch, indices, len(noted))
                if names:
                    fresh[batch.names] = names
        if fresh:
            self._ids |= fresh
            self._known.clear()
            self.seen = {shape: (self.with_tokens(batch), masks) for shape, (batch, masks) in self.seen.items()}
        return bool(fresh)

    def with_tokens(self, batch: Batch) -> Batch:
        """A batch that was read before it was known which tensor holds its token ids."""
        return batch if batch.tokens is not None else batch._replace(tokens=self._tokens(batch.shape))

    def _look(self, batch: Any, key: tuple[Any, ...] | None) -> tuple[Batch, tuple[str, ...], Mapping[str, Any]]:
        if is_array(batch) and not getattr(batch, "is_nested", False):
            key = (None, *batch.shape)
            known = self._known.get(key)
            if isinstance(known, Batch):
                return known, (), {}
        found = leaves(batch)
        if not found or any([one.lengths is None for one in found]):
            return self._unread(batch, found or []), (), {}
        tensors = {one.name: one.tensor for one in found}
        seen = self._learn(batch, found)
        if self._noted is not None:
            self._note(seen[0], found)
        elif key is not None and len(found) == _width(batch) and all([one.whole for one in found]):
            if len(self._known) == _MOST_SHAPES:
                self._known.clear()
            self._known[key] = seen if seen[1] else seen[0]
        return *seen, tensors

    def _unread(self, batch: Any, found: Sequence[Leaf]) -> Batch:
        """A batch without a shape: a list of rows that nobody has put into tensors yet, or whatever else it is."""
        if batch is not None:
            self.unread = type(batch).__name__
        if isinstance(batch, list) and batch and not found and isinstance(batch[0], Mapping | str):
            return Batch(len(batch), None, None, ())
        named = matching([one.name for one in found], "input_ids")
        tokens = sum(prod(one.sizes) for one in found if one.name in named) if named else None
        return Batch(samples(batch, several=self.several) if found else None, tokens, None, ())

    def _learn(self, batch: Any, found: Sequence[Leaf]) -> tuple[Batch, tuple[str, ...]]:
        shape: ShapeKey = tuple([(one.name, one.sizes) for one in found])
        shape += tuple([(f"{one.name}.lengths", one.lengths) for one in found if one.lengths])
        if shape not in self.seen:
            if len(self.seen) == _MOST_SHAPES:
                del self.seen[next(iter(self.seen))]
            rows = samples(batch, several=self.several)
            self.seen[shape] = Batch(rows, self._tokens(shape), None, shape), _masks(found)
            if self.news is not None:
                self.news(shape, {one.name: one.tensor for one in found if one.whole and hasattr(one.tensor, "device")})
        return self.seen[shape]

    def _tokens(self, shape: ShapeKey) -> int | None:
        sizes = dict(shape)
        ids = matching([*sizes], "input_ids") or self._ids.get(tuple(sizes), ())
        return sum(prod(sizes[name]) for name in ids) if ids else None

    def _note(self, seen: Batch, found: Sequence[Leaf]) -> None:
        if self._noted is not None and len(self._noted) < _MOST_NOTED:
            rows = seen.samples
            integers = [one for one in found if "int" in str(one.tensor.dtype) and one.sizes != (rows,)]  # no labels
            names = [one.name for one in found] + [f"{one.name}.lengths" for one in found if not one.whole]
            places = tuple((one.name, _address(one.tensor), prod(one.sizes)) for one in integers)
            self._noted.append(_Noted(tuple(names), places))


def _looked_up(batch: _Noted, indices: set[tuple[int, int]], batches: int) -> tuple[str, ...]:
    """The tensors of a batch that were looked up: by where they lie, or if they were copied since, by their size."""
    there = tuple(name for name, address, elements in batch.integers if (address, elements) in indices)
    if there:
        return there
    alike = [name for name, _, size in batch.integers if size in {elements for _, elements in indices}]
    if len({size for name, _, size in batch.integers if name in alike}) != 1:
        return ()
    if len(indices) <= batches:
        return tuple(alike[:1])  # of several that are as large, any tells how many tokens there are
    return tuple(alike) if len(alike) * batches == len(indices) else ()


def _address(tensor: Any) -> int | None:
    """Address of a tensor; None if it has no values."""
    try:
        return int(tensor.data_ptr())
    except (AttributeError, RuntimeError):
        return None


def _width(batch: Any) -> int:
    return 1 if is_array(batch) else len(batch)


def _masks(found: Sequence[Leaf]) -> tuple[str, ...]:
    """The masks of the token ids, one for each."""
    sizes = {one.name: one.sizes for one in found}
    whole = [one.name for one in found if one.whole]
    ids, masks = matching([*sizes], "input_ids"), matching(whole, "attention_mask")
    return masks if [sizes[name] for name in ids] == [sizes[name] for name in masks] else ()


def _kept(mask: Any) -> Any:
    """Elements that a mask keeps. One in floating point may as well be there to be added: unknown."""
    if not hasattr(mask, "is_floating_point"):
        return None if "float" in str(mask.dtype) else int((mask != 0).sum())
    return None if mask.is_floating_point() else mask.count_nonzero()
