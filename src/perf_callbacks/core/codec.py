"""Records as lines of text, and back: of a journal, and between ranks.

A journal is one JSON object per line, with `type` and `t`. A torn or foreign line is skipped, never fatal; keys that
this version doesn't know are dropped. A line on which a known key has a value of the wrong type is skipped too: a
journal may come from anywhere, and who reads it must be able to rely on the types of its records.

Ranks of one job run the same version: their lines hold the fields of one known record in order, without names.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from perf_callbacks.core.machine_records import Memory, Use
from perf_callbacks.core.records import (
    Checklist,
    Finding,
    Flops,
    Gc,
    Record,
    Row,
    Run,
    Span,
    Stall,
    Steps,
    Straggler,
    Summary,
    Window,
)
from perf_callbacks.core.stalls import Note
from perf_callbacks.core.type_checks import forms_of, is_number
from perf_callbacks.core.windows import Verdict, possible

T = TypeVar("T")

_TYPES: dict[str, type[Record]] = {
    kind.__name__.lower(): kind
    for kind in (Run, Checklist, Steps, Row, Gc, Span, Flops, Finding, Window, Summary, Stall, Straggler, Use, Memory)
}

_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(item.name for item in fields(kind)) for kind in (*_TYPES.values(), Verdict, Note)
}

_SPARSE = (Use, Memory)
"""Records whose unknown fields are left out."""

_FORMS = {kind: forms_of(kind) for kind in _FIELDS}


@dataclass(frozen=True, slots=True)
class Entry:
    """A record and when it was written, in seconds since its run began."""

    t: float
    record: Record


def encode(entry: Entry) -> str:
    """One line of a journal, without its end. Columns of times are kept to a tenth of a microsecond."""
    record = entry.record
    nothing = ((), None) if isinstance(record, _SPARSE) else ((),)
    parts = [f'"type":"{type(record).__name__.lower()}"', f'"t":{entry.t:.6f}']
    for name in _FIELDS[type(record)]:
        value = getattr(record, name)
        if value not in nothing:
            write = _times if name.endswith("_time") else _json
            parts.append(f'"{name}":{_column(value, write) if type(value) is tuple else write(value)}')
    return "{" + ",".join(parts) + "}"


def _column(values: tuple[Any, ...], write: Callable[[Any], str]) -> str:
    """One where every step has the same is written faster."""
    first = values[0]
    if first != values[-1] or values.count(first) < len(values):
        return write(values)
    return "[" + ((("null" if first is None else write((first,))[1:-1]) + ",") * len(values))[:-1] + "]"


def _times(values: tuple[float | None, ...]) -> str:
    try:
        return "[" + (("%.7f," * len(values)) % values)[:-1] + "]"
    except TypeError:  # a lost step has none
        return _json([value if value is None else round(value, 7) for value in values])


_json = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=asdict).encode


def decode(line: str) -> Entry | None:
    """The entry on one line; None where the line is torn, foreign, of a type that came later, or holds a wrong type."""
    try:
        values = _loads(line)
        kind = _TYPES[values.pop("type")]
        t = values.pop("t")
        record = _built(kind, {name: value for name, value in values.items() if name in _FORMS[kind]})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    if record is None or not is_number(t) or (isinstance(record, Steps) and not _even(record)):
        return None
    return Entry(float(t), record)


def pack(item: Window | Verdict | Note) -> str:
    """One line for the other ranks."""
    return _json([getattr(item, name) for name in _FIELDS[type(item)]])


def unpack(kind: type[T], line: str) -> T | None:
    """Return the `Window`, `Verdict` or `Note` on a line; None where the line is torn or foreign."""
    try:
        values = _loads(line)
        item = _built(kind, dict(zip(_FIELDS[kind], values, strict=True))) if isinstance(values, list) else None
    except (ValueError, RecursionError):
        return None
    return item if item is not None and possible(item) else None


def _loads(line: str) -> Any:
    if _EXPONENT.search(line) is None and max(map(len, line.split(","))) < LONGEST:  # no number can be infinite
        return json.loads(line, parse_constant=_finite)
    return json.loads(line, parse_float=_finite, parse_constant=_finite)


_EXPONENT = re.compile(r"[eE]\+?\d{3}")

LONGEST = 200
"""Characters of a number, less than which it fits into a float if its exponent has two digits."""


def _built(kind: type[T], values: dict[str, Any]) -> T | None:
    """A record with these values; None where one has the wrong type."""
    known = {name: _frozen(value) for name, value in values.items()}
    if kind is Summary and type(known.get("findings")) is tuple:
        known["findings"] = tuple([_finding(one) for one in known["findings"]])
    forms = _FORMS[kind]
    return kind(**known) if all([forms[name](value) for name, value in known.items()]) else None


def _finding(value: Any) -> Finding | None:
    """A finding within a summary."""
    names = _FORMS[Finding]
    if type(value) is not dict or not {*names} <= {*value}:
        return None
    return _built(Finding, {name: value[name] for name in names})


def _even(steps: Steps) -> bool:
    """Check that all columns that are there are as long as the first."""
    columns = [getattr(steps, name) for name in _FIELDS[Steps]]
    return all([len(column) in {0, len(steps.step)} for column in columns]) and len(steps.step) == len(steps.step_time)


def _finite(token: str) -> float:
    """A number of JSON with a point or an exponent. NaN and Infinity, also as 1e999, are none."""
    number = float(token)
    if not math.isfinite(number):
        raise ValueError(token)
    return number


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


def _frozen(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return tuple([_frozen(one) for one in value]) if list in {*map(type, value)} else tuple(value)
