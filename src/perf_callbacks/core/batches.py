"""How much is in a batch: read off its tensors by shape, without waiting for any of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

from perf_callbacks.core.steps import plus

ShapeKey = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of the tensors in a batch."""

_MOST_SHAPES = 1024

_ROWS = {tuple, list}
_shape = attrgetter("shape")


class Batch(NamedTuple):
    """What one micro-batch adds to its step."""

    samples: int | None
    """Rows."""
    tokens: int | None
    """Elements of `input_ids`; None where there are no token ids."""
    useful_tokens: Any
    """Elements that the mask keeps: a number that may still be under way on the device. None where there is no mask."""
    shape: ShapeKey


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
    """Reads batches of any form: a mapping, a tuple or list of tensors, one tensor, a list of rows.

    A shape that was seen before costs a look-up. The shapes seen are kept, for whoever counts FLOPs by shape.

    >>> BatchReader().read([{"prompt": "a"}, {"prompt": "b"}])
    Batch(samples=2, tokens=None, useful_tokens=None, shape=())
    """

    def __init__(self) -> None:
        self.seen: dict[ShapeKey, tuple[Batch, tuple[str, ...]]] = {}
        """For each shape its batch, and the names of its masks."""
        self.news: Callable[[ShapeKey, Mapping[str, Any]], object] | None = None
        """Told of a shape that was not seen before, or was forgotten, before the batch of these tensors is used."""
        self._known: dict[tuple[Any, ...], Batch | tuple[Batch, tuple[str, ...]]] = {}  # without masks, just the batch

    def read(self, batch: Any) -> Batch:
        """Samples, tokens and shape of a batch."""
        key: tuple[Any, ...] | None = None
        try:
            key = tuple(map(_shape, batch)) if type(batch) in _ROWS else (*batch.keys(), *map(_shape, batch.values()))
            found = self._known[key]
            if isinstance(found, Batch):
                return found
            known, masks = found
        except (AttributeError, KeyError, TypeError):
            if _is_rows(batch):
                return Batch(len(batch), None, None, ())
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

    def _look(self, batch: Any, key: tuple[Any, ...] | None) -> tuple[Batch, tuple[str, ...], Mapping[str, Any]]:
        tensors = dict(_walk(batch))
        known, masks = self._learn(tensors)
        if key is not None:
            if len(self._known) == _MOST_SHAPES:
                self._known.clear()
            self._known[key] = (known, masks) if masks else known
        return known, masks, tensors

    def _learn(self, tensors: Mapping[str, Any]) -> tuple[Batch, tuple[str, ...]]:
        shape = tuple((name, tuple(tensor.shape)) for name, tensor in tensors.items())
        if shape not in self.seen:
            if len(self.seen) == _MOST_SHAPES:
                del self.seen[next(iter(self.seen))]
            self.seen[shape] = _measure(shape)
            if self.news is not None:
                self.news(shape, tensors)
        return self.seen[shape]


def _measure(shape: ShapeKey) -> tuple[Batch, tuple[str, ...]]:
    sizes = dict(shape)
    ids, masks = _matching(sizes, "input_ids"), _matching(sizes, "attention_mask")
    tokens = sum(prod(sizes[name]) for name in ids) if ids else None
    rows = next((sizes[name][0] for name in ids or sizes if sizes[name]), None)
    if [sizes[name] for name in ids] != [sizes[name] for name in masks]:
        masks = ()
    return Batch(rows, tokens, None, shape), masks


def _kept(mask: Any) -> Any:
    """Elements that a mask keeps. One in floating point may as well be there to be added: unknown."""
    return None if mask.is_floating_point() else mask.count_nonzero()


def _matching(names: Mapping[str, object], wanted: str) -> tuple[str, ...]:
    """The tensors of that name, else all whose name ends in it (sentence pairs come as `anchor_input_ids`, …)."""
    leaves = {name: name.rpartition(".")[2] for name in names}
    same = tuple(name for name, leaf in leaves.items() if leaf == wanted)
    alike = (name for name, leaf in leaves.items() if leaf.endswith("_" + wanted) and not leaf.startswith("decoder_"))
    return same or tuple(alike)


def _is_rows(batch: Any) -> bool:
    """A list of samples that nobody has put into tensors yet, as reinforcement learning hands on its prompts."""
    return isinstance(batch, list) and bool(batch) and isinstance(batch[0], Mapping | str)


def _walk(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if hasattr(value, "numel"):
        yield name, value
    elif hasattr(value, "items"):
        for key, part in value.items():
            yield from _walk(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, tuple | list):
        for index, part in enumerate(value):
            yield from _walk(part, f"{name}[{index}]")
