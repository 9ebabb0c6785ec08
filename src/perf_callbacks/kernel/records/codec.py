"""Records as lines of text, and back: of a journal, and between ranks.

A journal is one JSON object per line, with `type` and `t`. A torn or foreign line is skipped, never fatal; keys that
this version doesn't know are dropped. A line on which a known key has a value of the wrong type is skipped too: a
journal may come from anywhere, and who reads it must be able to rely on the types of its records.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_args

import msgspec

from perf_callbacks.kernel.engine.windows import possible
from perf_callbacks.kernel.records import schema_1
from perf_callbacks.kernel.records.fit_records import Record, Run, Steps
from perf_callbacks.kernel.records.machine_records import Memory, Use

T = TypeVar("T")

_TYPES: dict[str, type[Record]] = {kind.__name__.lower(): kind for kind in get_args(Record)}

_FIELDS = {kind: [item.name for item in fields(kind)] for kind in _TYPES.values()}

_SPARSE = (Use, Memory)
"""Records whose unknown fields are left out."""

_DIGITS = bytes.maketrans(b"012345678", b"999999999")

_TOO_LONG = b"9" * 100
"""Digits of an integer that could overflow once it is turned into a float. msgspec reads up to 4,300 digits."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record and when it was written, in seconds since its run began."""

    t: float
    record: Record


class _Head(msgspec.Struct):
    type: str
    t: float


def encode(entry: Entry) -> str:
    """One line of a journal, without its end. Columns of times are kept to a tenth of a microsecond."""
    record = entry.record
    nothing = ((), None) if isinstance(record, _SPARSE) else ((),)
    parts = [f'"type":"{type(record).__name__.lower()}"', f'"t":{entry.t:.6f}']
    for name in _FIELDS[type(record)]:
        value = getattr(record, name)
        if value not in nothing:
            parts.append(f'"{name}":{_times(value) if name.endswith("_time") else _json(value)}')
    return "{" + ",".join(parts) + "}"


def _times(values: tuple[float | None, ...]) -> str:
    if None not in values:
        written = ("%.7f," * len(values)) % values
        if "n" not in written:  # nan and inf become null below
            return "[" + written[:-1] + "]"
    return _json([value if value is None else round(value, 7) for value in values])


def _json(value: Any) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:  # a path may hold bytes that are no UTF-8
        plain = msgspec.to_builtins(value, enc_hook=_plain)
        return json.dumps(plain, ensure_ascii=False).encode(errors="replace").decode()


def _plain(value: Any) -> Any:
    """Return a value of a subclass, such as NumPy's float64, as its built-in type."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a record holds {value!r}")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def decode(line: str) -> Entry | None:
    """The entry on one line; None where the line is torn, foreign, of a type that came later, or holds a wrong type."""
    head = _read(_Head, line)
    if head is not None and head.type == "summary":
        line = _in_parts(line)
    record = None if head is None or head.type not in _TYPES else _read(_TYPES[head.type], line)
    if head is None or record is None or (isinstance(record, Steps) and not _even(record)):
        return None
    return Entry(head.t, record)


def pack(item: Any) -> str:
    """Return a dataclass as one line for the other ranks."""
    return _json(item)


def unpack(kind: type[T], line: str) -> T | None:
    """Return the dataclass on a line; None if the line is torn or foreign."""
    item = _read(kind, line)
    return item if item is not None and possible(item) else None


def _read(kind: type[T], line: str) -> T | None:
    """Read an object with these fields; None if one is missing or has a value of another type."""
    try:
        data = line.encode()
        return None if _TOO_LONG in data.translate(_DIGITS) else msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _in_parts(line: str) -> str:
    """Return the line of a summary with a part per feature, also if it was written in schema 1."""
    summary = _read(dict, line)
    return line if summary is None or not schema_1.is_old(summary) else _json(schema_1.converted(summary))


def _even(steps: Steps) -> bool:
    """Check that all columns that are there are as long as the first."""
    columns = [getattr(steps, name) for name in _FIELDS[Steps]]
    return all([len(column) in {0, len(steps.step)} for column in columns]) and len(steps.step) == len(steps.step_time)


def entries(lines: Iterable[str]) -> Iterator[Entry]:
    """The entries of a journal, in order."""
    return (entry for entry in map(decode, lines) if entry is not None)


def attempts(journal: Iterable[Entry]) -> list[list[Entry]]:
    """A journal cut into its fits and attempts, each from its `Run` on. What precedes the first one is dropped."""
    parts: list[list[Entry]] = []
    for entry in journal:
        if isinstance(entry.record, Run):
            parts.append([])
        if parts:
            parts[-1].append(entry)
    return parts
