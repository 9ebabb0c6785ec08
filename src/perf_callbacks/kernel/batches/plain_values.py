"""Plain values in a batch, such as a number of iterations, which may decide the work as shapes do."""

from collections.abc import Mapping
from typing import Any

ShapeKey = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of the tensors in a batch, and its plain values."""

MOST_IN_BATCH = 8
"""If a batch has more plain values than this, the values are data, not settings."""

MOST_VALUES = 4
"""A name with more values than this is left out of keys once counts show that its value makes no difference."""

AGREEING = 2
"""Number of agreeing counts at different values that show that the value makes no difference."""

_LONGEST = 32
_DEEPEST = 2
_IS = " = "
_KINDS = frozenset({bool, int, float, str})


class PlainValues:
    """The plain values of batches, as entries of their shapes without sizes."""

    def __init__(self) -> None:
        self.dropped: frozenset[str] = frozenset()
        """Names that make no difference."""
        self._seen: dict[str, set[Any]] = {}

    @property
    def busy(self) -> frozenset[str]:
        """Names with many values that may still make a difference."""
        return frozenset([name for name, seen in self._seen.items() if len(seen) > MOST_VALUES]) - self.dropped

    def entries(self, batch: Any) -> ShapeKey:
        """Return an entry for each plain value that may make a difference."""
        found: list[tuple[str, Any]] = []
        _find(batch, "", 0, found)
        if not found or len(found) > MOST_IN_BATCH:
            return ()
        for name, value in found:
            seen = self._seen.setdefault(name, set()) if len(self._seen) < MOST_IN_BATCH else self._seen.get(name)
            if seen is not None and len(seen) <= MOST_VALUES:
                seen.add(value)
        return tuple([(f"{name}{_IS}{value!r}", ()) for name, value in found if name not in self.dropped])

    def strip(self, shape: ShapeKey) -> ShapeKey:
        """Return a shape without the names that make no difference."""
        return without(shape, self.dropped) if self.dropped else shape


def without(shape: ShapeKey, names: frozenset[str]) -> ShapeKey:
    """Leave the plain values of these names out of a shape."""
    return tuple([one for one in shape if not _is_plain(one[0]) or _name(one[0]) not in names])


def names(shape: ShapeKey) -> list[str]:
    """List the names of the plain values in a shape.

    >>> names((("x", (4, 8)), ("n = 5", ())))
    ['n']
    """
    return [_name(entry) for entry, _ in shape if _is_plain(entry)]


def tensors(shape: ShapeKey) -> tuple[str, ...]:
    """List the names of the tensors in a shape."""
    return tuple([entry for entry, _ in shape if not _is_plain(entry)])


def _is_plain(entry: str) -> bool:
    return _IS in entry


def _name(entry: str) -> str:
    return entry.partition(_IS)[0]


def _find(value: Any, name: str, depth: int, found: list[tuple[str, Any]]) -> None:
    if isinstance(value, list) and value and type(value[0]) in _KINDS:
        return  # a column of data
    if isinstance(value, tuple | list):
        inside: Any = zip(getattr(value, "_fields", range(len(value))), value, strict=False)
    elif isinstance(value, Mapping):
        inside = value.items()
    else:
        return
    for key, part in inside:
        if len(found) > MOST_IN_BATCH:
            return
        path = f"{name}.{key}" if name else str(key)
        if type(part) in _KINDS:
            if type(part) is not str or len(part) <= _LONGEST:
                found.append((path, part))
        elif depth < _DEEPEST:
            _find(part, path, depth + 1, found)
