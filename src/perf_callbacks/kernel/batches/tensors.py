"""Find the tensors in a batch of any form. Attributes identify a tensor, because this module doesn't import torch."""

import marshal
import re
import weakref
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from perf_callbacks.kernel.foreign_errors import let_pass

ShapeKey = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of the tensors in a batch, then the lengths of ragged tensors, then digests of values."""

VALUES = ".values"
"""In a `ShapeKey`, the end of the name of an entry that holds a digest of a tensor's values."""

Identity = tuple["weakref.ref[Any]", int]
"""A tensor, and how often it was written."""

MOST_PARTS = 4096
"""Maximum number of parts of a batch. The shapes of a larger batch are not read."""

_SIZED = re.compile(
    r"(?<![a-z])((grid|count)s?|[a-z]*(thw|(len|length|size|shape|offset)s?)|position_ids)(?![a-z])", re.IGNORECASE
)
"""Words in names of integer tensors whose values say how much work a batch is, such as `cu_seqlens`, `image_grid_thw`
and `spatial_shapes`, but not `country` or `calendar`."""

_MOST_VALUES = 64
"""The values of a larger tensor are not read."""

DEEPEST = 8

_HOST = frozenset({"torch", "numpy"})
"""Modules of the classes whose values can be read without work of another device or process."""

_PLAIN = (str, bytes, bytearray, int, float, complex, type)


class Leaf(NamedTuple):
    """A tensor or an array in a batch."""

    name: str
    """Place of the tensor in its batch, such as "inputs.input_ids" or "[0]"."""
    tensor: Any
    sizes: tuple[int, ...]
    """Shape of the tensor, or of its concatenated rows if the tensor is ragged."""
    rows: int | None
    """Size of the first dimension, or the number of rows of a ragged tensor. None: the tensor has no dimension."""
    lengths: tuple[int, ...] | None = ()
    """Lengths of the rows of a ragged tensor. None means that the lengths are on a device. For a `PackedSequence`, the
    rows of each time step, from which the lengths follow. For all other tensors, the tuple is empty."""

    @property
    def whole(self) -> bool:
        """True if the tensor is not ragged."""
        return self.lengths == ()


def leaves(batch: Any) -> list[Leaf] | None:
    """Return the tensors in a batch, or None if the batch has too many parts or is nested too deeply.

    The search enters mappings, tuples, lists, named tuples, dataclasses and objects with attributes or slots.
    """
    found: list[Leaf] = []
    return found if _walk(batch, "", (), found) else None


def _walk(value: Any, name: str, above: tuple[int, ...], found: list[Leaf]) -> bool:
    """Add the tensors in a part of a batch to `found`. Return False if the part is too large or nested too deeply."""
    if is_array(value):
        found.append(leaf(name, value))
        return True
    if is_packed(value):
        found.append(_packed(name, value))
        return True
    if id(value) in above:  # an object may refer to its container
        return True
    inside = parts(value)
    if len(above) > DEEPEST or len(inside) + len(found) > MOST_PARTS:
        return False
    numbered, within = isinstance(value, tuple | list), (*above, id(value))
    for key, part in inside:
        if part is not None and not isinstance(part, _PLAIN):
            path = f"{name}[{key}]" if numbered and type(key) is int else f"{name}.{key}" if name else str(key)
            if not _walk(part, path, within, found):
                return False
    return True


def is_array(value: Any) -> bool:
    """Return True for a tensor or a numpy array. Only the class decides, because instances may have any attribute."""
    return _is_kind_of_array(type(value))  # type: ignore[arg-type] # mypy takes the hash of a class for its instances


@lru_cache(maxsize=256)
def _is_kind_of_array(kind: type) -> bool:
    return hasattr(kind, "shape") and hasattr(kind, "dtype") and not hasattr(kind, "keys")


def is_sized(one: Leaf) -> bool:
    """Return True if the values of an array say how much work its batch is, and the array is small."""
    small = "int" in str(one.tensor.dtype) and prod(one.sizes) <= _MOST_VALUES
    return small and _SIZED.search(one.name) is not None


def digest(tensor: Any) -> int:
    """Return a number for the values of an integer array on the host. The number is 0 on a device, and if unknown."""
    if type(tensor).__module__ not in _HOST or not getattr(tensor, "is_cpu", True):
        return 0
    try:
        return hash(marshal.dumps(tensor.tolist(), 2))  # from version 3 on, equal values may have different bytes
    except (RuntimeError, ValueError) as error:  # a sparse or a wrapped tensor
        let_pass(error)
        return 0


def address_of(tensor: Any) -> int | None:
    """Return the memory address of a tensor, or None if the tensor has no values."""
    try:
        return int(tensor.data_ptr())
    except (AttributeError, RuntimeError) as error:
        let_pass(error)
        return None


def are_same(some: Identity | None, other: Identity | None) -> bool:
    """Return True if a tensor is the same object as before, and was not written since. Values are not compared."""
    if some is None or other is None or some[0]() is None:
        return False
    return some[0]() is other[0]() and some[1] == other[1]


def identity(tensor: Any) -> Identity | None:
    """Return a weak reference to a tensor and its number of writes, or None if it can't have both."""
    try:
        return weakref.ref(tensor), tensor._version  # noqa: SLF001 there is no public name
    except (AttributeError, RuntimeError, TypeError) as error:  # an array, or a tensor of inference
        let_pass(error)
        return None


def is_packed(value: Any) -> bool:
    """Return True for a `PackedSequence`, which interleaves the time steps of sequences."""
    return isinstance(value, tuple) and getattr(value, "_fields", ())[:2] == ("data", "batch_sizes")


def parts(value: Any) -> list[tuple[Any, Any]]:
    """Return the parts of a container, each with its name or index.

    The result is empty for a plain value, such as a string. The result is also empty for a list whose first element is
    a plain value.
    """
    if value is None or isinstance(value, _PLAIN):
        return []
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        return [] if value and isinstance(value[0], _PLAIN) else list(zip(names, value, strict=False))
    if hasattr(type(value), "items") and hasattr(type(value), "keys"):
        return list(value.items())
    if callable(value) and not hasattr(type(value), "keys"):  # a model or tokenizer; a callable graph has `keys`
        return []
    return list(_attributes(value).items())


def _attributes(value: Any) -> dict[str, Any]:
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    found = {name: getattr(value, name, None) for name in slots if name not in {"__dict__", "__weakref__"}}
    return found | getattr(value, "__dict__", {})


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def leaf(name: str, tensor: Any) -> Leaf:
    if getattr(tensor, "is_nested", False):
        return _ragged(name, tensor)
    sizes = tuple(tensor.shape)
    return Leaf(name, tensor, sizes, sizes[0] if sizes else None)


def _ragged(name: str, tensor: Any) -> Leaf:
    """Make the `Leaf` of a nested tensor. The tensor's sizes are on the host, and its offsets are on the device."""
    rows = int(tensor.size(0))
    if hasattr(tensor, "_nested_tensor_size") and not hasattr(tensor, "_offsets"):
        every = tensor._nested_tensor_size().tolist()  # noqa: SLF001 there is no public way
        return Leaf(name, tensor, (int(tensor.numel()),), rows, tuple(size for sizes in every for size in sizes))
    offsets = tensor.offsets()
    ends = offsets.tolist() if offsets.device.type == "cpu" else None
    lengths = None if ends is None else tuple(end - start for start, end in pairwise(ends))
    return Leaf(name, tensor, tuple(tensor.values().shape), rows, lengths)


def _packed(name: str, packed: Any) -> Leaf:
    """Make the `Leaf` of a `PackedSequence`. The attribute `batch_sizes` is always on the host, largest size first."""
    steps = tuple(packed.batch_sizes.tolist())
    return Leaf(name, packed.data, tuple(packed.data.shape), steps[0], steps)
