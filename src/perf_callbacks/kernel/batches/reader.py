"""Reads samples, tokens and shape of a batch from its tensors, without waiting for the device."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

from perf_callbacks.kernel.batches.sample_counts import matching, samples
from perf_callbacks.kernel.batches.tensors import (
    VALUES,
    Identity,
    Leaf,
    ShapeKey,
    address_of,
    are_same,
    digest,
    identity,
    is_array,
    is_sized,
    leaves,
)
from perf_callbacks.kernel.engine.steps import plus
from perf_callbacks.kernel.foreign_errors import let_pass

_MOST_SHAPES = 1024

_MOST_FORMS = 64
"""Most sets of tensor names that are searched for constants."""

_MOST_NOTED = 256
"""Most batches of a step with FLOP counting that are searched for token ids."""

UNREADABLE = (AttributeError, LookupError, TypeError, RuntimeError)
"""Raised by a batch of a new form. A nested tensor, which has no shape, raises `RuntimeError`."""

ROWS = frozenset({tuple, list})
"""Batches whose tensors are found by index, not by name."""

shape_of = attrgetter("shape")


class Batch(NamedTuple):
    """Samples, tokens and tensor shapes of a micro-batch."""

    samples: int | None
    """None: unknown, for example because the tensors don't agree."""
    tokens: int | None
    """Token ids. None: there are none, or the tensor that holds them is not known yet."""
    useful_tokens: Any
    """Tokens that the attention mask keeps: a tensor on the mask's device. None: no mask, or it can't be counted."""
    shape: ShapeKey
    """Names and shapes of the tensors, and digests of some values. Empty if the shapes can't be read."""


class Lookup(NamedTuple):
    """Look-up in an embedding, seen in a step whose FLOPs are counted."""

    table: int
    """Memory address of the embedding's weights."""
    rows: int
    address: int
    elements: int


class _Known(NamedTuple):
    """Facts that all batches with the same tensor shapes share."""

    batch: Batch
    masks: tuple[str, ...]
    full: Batch
    """`batch` with all tokens as useful, for batches whose masks keep all tokens."""
    sized: tuple[str, ...] = ()
    """Tensors whose values follow the shapes in the key of a batch. Then `batch` may have other values."""


class _Noted(NamedTuple):
    """Integer tensors of a batch that was read in a step whose FLOPs are counted."""

    names: tuple[str, ...]
    integers: tuple[tuple[str, int | None, int], ...]
    """Name, address and element count of each integer tensor with several elements per sample."""


def together(batches: Sequence[Batch]) -> tuple[int | None, int | None, Any]:
    if len(batches) == 1:
        return batches[0][:3]
    return (
        plus(*[batch.samples for batch in batches]),
        plus(*[batch.tokens for batch in batches]),
        plus(*[batch.useful_tokens for batch in batches]),
    )


def nothing(batch: Batch) -> tuple[int | None, int | None, Any]:
    """Return 0 for each amount, and None for an amount that `batch` doesn't know.

    >>> nothing(Batch(4, None, None, ()))
    (0, None, None)
    """
    return batch.samples and 0, batch.tokens and 0, None if batch.useful_tokens is None else 0


class BatchReader:
    """Reads batches of any form, such as tensors or arrays in mappings, tuples, lists and objects.

    A batch may also be a list of rows without tensors, such as prompts. A batch of a known shape costs one look-up in a
    dictionary. `on_new_shape` gets the first batch of each shape before the model does, and again after `forget`.

    >>> BatchReader().read([{"prompt": "a"}, {"prompt": "b"}])
    Batch(samples=2, tokens=None, useful_tokens=None, shape=())
    """

    def __init__(self, on_new_shape: Callable[[ShapeKey, Mapping[str, Any]], object] | None = None) -> None:
        self._on_new_shape = on_new_shape
        self.unreadable: str | None = None
        """Type of the last batch whose shapes can't be read. None: all batches were read."""
        self.seen: dict[ShapeKey, tuple[Batch, tuple[str, ...]]] = {}
        """The `Batch` of each known shape, and the names of its attention masks."""
        self.several = False
        """True if each batch has one batch from each of several loaders. Their samples add up."""
        self.time_first = False
        """True if the model takes sequences whose first dimension is time."""
        self.by_shapes: dict[tuple[Any, ...], Batch] = {}
        """By tensor shapes, without a mask; with the names in a mapping. Looked at in every step, to save a Python
        frame."""
        self._known: dict[tuple[Any, ...], _Known] = {}
        self.has_read = False
        self._array: Any = None  # the type of batches that are a tensor
        self._ids: dict[tuple[str, ...], tuple[str, ...]] = {}  # names of token ids, by the names of all tensors
        self._before: dict[tuple[str, ...], list[Identity | None]] = {}
        self._constants: dict[tuple[str, ...], frozenset[str]] = {}  # by the names of all tensors too
        self._noted: list[_Noted] | None = None
        self.modes: Callable[[], bool] = bool
        """True while a mode of the program sees each read of a tensor's attribute."""
        self.unseen: Callable[[], AbstractContextManager[object]] = nullcontext
        """A context in which no mode sees them."""
        self._modes_seen = False  # then code that looks into `by_shapes` must find nothing, because it reads shapes

    def read(self, batch: Any) -> Batch:
        if self.modes():
            self._modes_seen = True
            with self.unseen():  # no mode is active within
                return self.read(batch)
        key: tuple[Any, ...] | None = None
        try:
            if type(batch) is self._array:
                key = (None, *batch.shape)
            elif type(batch) in ROWS:
                key = tuple(map(shape_of, batch))
            else:
                if type(batch) is not dict and isinstance(batch, Mapping):  # a lazy mapping makes its values each time
                    batch = dict(zip(batch.keys(), batch.values(), strict=False))
                key = (*batch.keys(), *map(shape_of, batch.values()))
            seen, masks, full, sized = self._known[key]
            if sized:
                valued = (*key, *[digest(batch[name]) for name in sized])
                seen, masks, full, _ = self._known.get(valued) or self._revalue(self._known[key], batch, valued)
        except UNREADABLE as error:
            let_pass(error)
            (seen, masks, full, _), batch = self._look(batch, key)
        if not masks:
            return seen
        if len(masks) == 1 and hasattr(mask := batch[masks[0]], "is_cpu"):  # as `_kept`, without its frame
            useful = None if mask.is_floating_point() else mask.count_nonzero()
            useful = int(useful) if mask.is_cpu and useful is not None else useful
            if mask.is_cpu and useful == full.useful_tokens:
                return full
        else:
            useful = plus(*[_kept(batch[name]) for name in masks])
        return Batch(seen.samples, seen.tokens, useful, seen.shape)

    def forget(self, shape: ShapeKey) -> None:
        self.seen.pop(shape, None)
        self._known = {key: facts for key, facts in self._known.items() if facts.batch.shape != shape}
        self.by_shapes.clear()

    def note(self) -> None:
        """Store the addresses of the tensors of the next batches, until `look_up` finds the tensors of token ids."""
        self._noted = []
        self._forget_all()

    def look_up(self, lookups: Iterable[Lookup]) -> bool:
        """Find the tensors that hold token ids, from the embedding look-ups since `note`. Return True if any are new.

        The largest embedding counts as the token embedding, unless another was looked up with a different number of
        indices. A tensor with one number per sample, such as a class or a user, holds no token ids. Batches with equal
        tensor names have their token ids in the same tensors. Batches with `input_ids` need no search.
        """
        noted, self._noted = self._noted or [], None
        every = {*lookups}
        fresh: dict[tuple[str, ...], tuple[str, ...]] = {}
        for batch in noted:
            if batch.names not in self._ids and not matching(batch.names, "input_ids"):
                names = _looked_up(batch, every, len(noted))
                if names:
                    fresh[batch.names] = names
        if fresh:
            self._ids |= fresh
            self._forget_all()
            self.seen = {shape: (self.with_tokens(batch), masks) for shape, (batch, masks) in self.seen.items()}
        return bool(fresh)

    def with_tokens(self, batch: Batch) -> Batch:
        """Count the tokens of a batch that was read before the tensor of token ids was known."""
        return batch if batch.tokens is not None else batch._replace(tokens=self._tokens(batch.shape))

    def _look(self, batch: Any, key: tuple[Any, ...] | None) -> tuple[_Known, Mapping[str, Any]]:
        self.has_read = True
        if is_array(batch) and not getattr(batch, "is_nested", False):
            key, self._array = (None, *batch.shape), type(batch)
            facts = self._known.get(key)
            if facts is not None:
                return facts, {}
        entries = leaves(batch)
        if not entries or any([entry.lengths is None for entry in entries]):
            unread = self._unread(batch, entries or [])
            return _Known(unread, (), unread), {}
        tensors = {entry.name: entry.tensor for entry in entries}
        plain = key is not None and _plain(batch, entries)
        values = {entry.name: digest(entry.tensor) for entry in entries if is_sized(entry)} if plain else {}
        seen, masks = self._learn(batch, entries, values, plain=plain)
        facts = _Known(seen, masks, seen._replace(useful_tokens=seen.tokens))
        if self._noted is not None:
            self._note(seen, entries)
        elif key is not None and plain and tuple(tensors) not in self._before:
            if len(self._known) >= _MOST_SHAPES:
                self._forget_all()
            self._known[key] = facts._replace(sized=tuple(values))
            if not (values or masks or is_array(batch) or self._modes_seen):
                self.by_shapes[key] = seen
        return facts, tensors

    def _revalue(self, like: _Known, batch: Mapping[str, Any], key: tuple[Any, ...]) -> _Known:
        """Return the facts of a batch that has the shapes of another batch, but maybe other values."""
        count = len(like.sized)
        values = [(f"{name}{VALUES}", (value,)) for name, value in zip(like.sized, key[-count:], strict=True)]
        seen = like.batch._replace(shape=like.batch.shape[:-count] + tuple(values))
        if len(self._known) >= _MOST_SHAPES:
            self._forget_all()
        facts = self._known[key] = _Known(seen, like.masks, seen._replace(useful_tokens=seen.tokens))
        self._see(seen, like.masks, {name: tensor for name, tensor in batch.items() if hasattr(tensor, "device")})
        return facts

    def _see(self, batch: Batch, masks: tuple[str, ...], tensors: Mapping[str, Any]) -> None:
        new = batch.shape not in self.seen
        if new and len(self.seen) == _MOST_SHAPES:
            del self.seen[next(iter(self.seen))]
        self.seen[batch.shape] = batch, masks
        if new and self._on_new_shape is not None:
            self._on_new_shape(batch.shape, tensors)

    def _forget_all(self) -> None:
        self._known.clear()
        self.by_shapes.clear()

    def _unread(self, batch: Any, entries: Sequence[Leaf]) -> Batch:
        """Return the `Batch` of an object without a shape, such as a list of rows that are not tensors yet."""
        if batch is not None:
            self.unreadable = type(batch).__name__
        if isinstance(batch, list) and batch and not entries and isinstance(batch[0], Mapping | str):
            return Batch(len(batch), None, None, ())
        named = matching([entry.name for entry in entries], "input_ids")
        tokens = sum(prod(entry.sizes) for entry in entries if entry.name in named) if named else None
        rows = samples(batch, several=self.several, time_first=self.time_first) if entries else None
        return Batch(rows, tokens, None, ())

    def _learn(
        self, batch: Any, entries: Sequence[Leaf], values: Mapping[str, int], *, plain: bool
    ) -> tuple[Batch, tuple[str, ...]]:
        shape: ShapeKey = tuple([(entry.name, entry.sizes) for entry in entries])
        shape += tuple([(f"{entry.name}.lengths", entry.lengths) for entry in entries if entry.lengths])
        shape += tuple([(f"{name}{VALUES}", (value,)) for name, value in values.items()])
        names = tuple([entry.name for entry in entries])
        if shape not in self.seen or names in self._before:
            rows = samples(batch, several=self.several, time_first=self.time_first)
            if plain and not self.several and (rows is None or names in self._before):
                fixed = self._find_constants(names, entries)
                constants = {id(entry.tensor) for entry in entries if entry.name in fixed}
                rows = rows or samples(batch, time_first=self.time_first, constants=constants)
            whole = {entry.name: entry.tensor for entry in entries if entry.whole and hasattr(entry.tensor, "device")}
            self._see(Batch(rows, self._tokens(shape), None, shape), _masks(entries), whole)
        return self.seen[shape]

    def _find_constants(self, names: tuple[str, ...], entries: Sequence[Leaf]) -> frozenset[str]:
        """Return the same unwritten objects in the first two batches; none if all are: a loop over one batch."""
        if names not in self._constants and len(self._constants) + len(self._before) <= _MOST_FORMS:
            now = [identity(entry.tensor) for entry in entries]
            before = self._before.pop(names, None)
            if before is None:
                self._before[names] = now
            else:
                same = [are_same(*both) for both in zip(before, now, strict=True)]
                fixed = [name for name, constant in zip(names, same, strict=True) if constant and not all(same)]
                self._constants[names] = frozenset(fixed)
        return self._constants.get(names, frozenset())

    def _tokens(self, shape: ShapeKey) -> int | None:
        sizes = dict(shape)
        ids = matching([*sizes], "input_ids") or self._ids.get(tuple(sizes), ())
        return sum(prod(sizes[name]) for name in ids) if ids else None

    def _note(self, seen: Batch, entries: Sequence[Leaf]) -> None:
        if self._noted is not None and len(self._noted) < _MOST_NOTED:
            rows = seen.samples
            integers = [entry for entry in entries if "int" in str(entry.tensor.dtype) and _has_several(entry, rows)]
            places = tuple((entry.name, address_of(entry.tensor), prod(entry.sizes)) for entry in integers)
            self._noted.append(_Noted(tuple([name for name, _ in seen.shape]), places))


def _has_several(entry: Leaf, rows: int | None) -> bool:
    """Return False for a column of labels or users, with one element per sample."""
    return prod(entry.sizes) != rows and (rows is not None or len(entry.sizes) > 1 or not entry.whole)


def _looked_up(batch: _Noted, lookups: set[Lookup], batches: int) -> tuple[str, ...]:
    """Return the tensors that were indices of the token embedding, by address or, if copied before, by size."""
    places = {(address, size): name for name, address, size in reversed(batch.integers)}  # each tensor once
    there = [lookup for lookup in lookups if (lookup.address, lookup.elements) in places]
    if there:
        matches = {(lookup.address, lookup.elements) for lookup in _of_tokens(there)}
        return tuple(name for place, name in places.items() if place in matches)
    sizes = {size for *_, size in batch.integers}
    indices = {
        (lookup.address, lookup.elements)
        for lookup in _of_tokens([lookup for lookup in lookups if lookup.elements in sizes])
    }
    alike = [name for name, _, size in batch.integers if size in {elements for _, elements in indices}]
    if len({size for name, _, size in batch.integers if name in alike}) != 1:
        return ()
    if len(indices) <= batches:
        return tuple(alike[:1])  # tensors of equal size give the same number of tokens
    return tuple(alike) if len(alike) * batches == len(indices) else ()


def _of_tokens(lookups: Sequence[Lookup]) -> list[Lookup]:
    """Return the look-ups in the largest embedding, or none if another got a number of indices that it never got."""
    largest = max(lookups, key=lambda lookup: lookup.rows, default=None)
    tokens = [lookup for lookup in lookups if largest is not None and lookup.table == largest.table]
    sizes = {lookup.elements for lookup in tokens}
    return tokens if sizes.issuperset([lookup.elements for lookup in lookups]) else []


def _plain(batch: Any, entries: Sequence[Leaf]) -> bool:
    inside = (batch,) if is_array(batch) else batch if type(batch) in ROWS else batch.values()
    return len(entries) == len(inside) and all(map(is_array, inside)) and all([entry.whole for entry in entries])


def _masks(entries: Sequence[Leaf]) -> tuple[str, ...]:
    """Return the names of the attention masks, if they have the shapes of the tensors of token ids."""
    sizes = {entry.name: entry.sizes for entry in entries}
    whole = [entry.name for entry in entries if entry.whole]
    ids, masks = matching([*sizes], "input_ids"), matching(whole, "attention_mask")
    return masks if [sizes[name] for name in ids] == [sizes[name] for name in masks] else ()


def _kept(mask: Any) -> Any:
    """Return None for a mask of floating-point numbers, which may be added to the attention scores."""
    if not hasattr(mask, "is_floating_point"):
        return None if "float" in str(mask.dtype) else int((mask != 0).sum())
    if mask.is_floating_point():
        return None
    return int(mask.count_nonzero()) if mask.is_cpu else mask.count_nonzero()
