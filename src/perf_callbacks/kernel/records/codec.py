"""Encode records as lines of text for the journal and for messages between ranks, and decode such lines.

Each line of a journal is a JSON object with the keys `type` and `t`. Torn lines, and lines without a record, are
skipped. A key that this version doesn't know is dropped. A journal may come from anywhere, and readers of a journal
rely on the types of values. So a line is also skipped if a known key has a value of the wrong type.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_args

import msgspec

from perf_callbacks.kernel.engine.windows import possible
from perf_callbacks.kernel.records.fit_records import Record, Run, Steps
from perf_callbacks.kernel.records.machine_records import Memory, OutOfMemory, Use

T = TypeVar("T")

NAMES = {kind: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Record)}
"""Name of each class of records in a journal, such as `out_of_memory`."""

_TYPES: dict[str, type[Record]] = {name: kind for kind, name in NAMES.items()}

_FIELDS = {kind: [item.name for item in fields(kind)] for kind in _TYPES.values()}

_SPARSE = (Use, Memory, OutOfMemory)
"""Classes of records whose fields are not written if their value is None."""

_DIGITS = bytes.maketrans(b"012345678", b"999999999")

_TOO_LONG = b"9" * 100
"""Text of 100 digits in a row, once each digit of a line has been replaced by 9. A line with 100 digits in a row is not
read, because the number may be too large for a float."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record, and its time in seconds since the run began."""

    t: float
    record: Record


class _Head(msgspec.Struct):
    type: str
    t: float


def encode(entry: Entry) -> str:
    """Encode an entry as a journal line without the line end. Times of steps have a resolution of 0.1 us."""
    record = entry.record
    nothing = ((), None) if isinstance(record, _SPARSE) else ((),)
    parts = [f'"type":"{NAMES[type(record)]}"', f'"t":{entry.t:.6f}']
    for name in _FIELDS[type(record)]:
        value = getattr(record, name)
        if value not in nothing:
            parts.append(f'"{name}":{_times(value) if name.endswith("_time") else pack(value)}')
    return "{" + ",".join(parts) + "}"


def _times(values: tuple[float | None, ...]) -> str:
    if None not in values:
        written = ("%.7f," * len(values)) % values
        if "n" not in written:  # nan and inf become null below
            return "[" + written[:-1] + "]"
    return pack([value if value is None else round(value, 7) for value in values])


def pack(value: Any) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:  # a path may contain bytes that aren't UTF-8
        return _without_surrogates(msgspec.to_builtins(value, enc_hook=_plain))


def _without_surrogates(value: Any) -> str:
    """Encode a value. Surrogates, which stand for bytes that aren't UTF-8, become question marks."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


def _plain(value: Any) -> Any:
    """Convert a value of a subclass, such as NumPy's float64, to its built-in type."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a record holds {value!r}")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def decode(line: str) -> Entry | None:
    """Decode a journal line; None if the line is torn, is no known record, or has a value of a wrong type."""
    head = _read(_Head, line)
    record = None if head is None or head.type not in _TYPES else _read(_TYPES[head.type], line)
    if head is None or record is None or (isinstance(record, Steps) and not _even(record)):
        return None
    return Entry(head.t, record)


def unpack(kind: type[T], line: str) -> T | None:
    """Decode another rank's line as this dataclass; None if the line is torn or has impossible values."""
    item = _read(kind, line)
    return item if item is not None and possible(item) else None


def _read(kind: type[T], line: str) -> T | None:
    """Read an object of this class; None if a field is missing or has a value of another type."""
    try:
        data = line.encode()
        return None if _TOO_LONG in data.translate(_DIGITS) else msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _even(steps: Steps) -> bool:
    """Return True if each column of a `Steps` record is empty or as long as the column `step`."""
    columns = [getattr(steps, name) for name in _FIELDS[Steps]]
    return all([len(column) in {0, len(steps.step)} for column in columns]) and len(steps.step) == len(steps.step_time)


def attempts(journal: Iterable[Entry]) -> list[list[Entry]]:
    """Split a journal at each `Run`, into fits and attempts. Entries before the first `Run` are dropped."""
    parts: list[list[Entry]] = []
    for entry in journal:
        if isinstance(entry.record, Run):
            parts.append([])
        if parts:
            parts[-1].append(entry)
    return parts
