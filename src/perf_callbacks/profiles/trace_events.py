"""Read the events of a Chrome trace that torch.profiler wrote."""

import gzip
import json
import math
import zlib
from pathlib import Path
from typing import Any

import msgspec

from perf_callbacks.kernel.settings.config import printable

MOST_BYTES = 1_000_000_000  # bytes of JSON: reading a trace of 1 GB takes up to 5 GB of memory

_CHUNK = 1 << 24

_GZIP = b"\x1f\x8b"

Scalar = int | float | str | bool | None


class TraceError(ValueError):
    """A trace can't be read. The message is a sentence for the user."""


class Arguments(msgspec.Struct, gc=False):
    """Arguments of a trace event."""

    correlation: Any = None
    external_id: Any = msgspec.field(default=None, name="External id")
    device: Any = None
    sequence: Any = msgspec.field(default=None, name="Sequence number")
    shapes: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")
    values: Any = msgspec.field(default=None, name="Concrete Inputs")
    flops: Any = None


NO_ARGUMENTS = Arguments()


class TraceEvent(msgspec.Struct, gc=False):
    """`ts` and `dur` are in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: Scalar = ""
    pid: Scalar = 0
    tid: Scalar = 0
    ts: float | str | None = None
    dur: float | str | None = None
    args: Arguments | None = None


class TraceDevice(msgspec.Struct, gc=False):
    """Description of a device in a trace."""

    id: Scalar = None
    name: str = ""


class Trace(msgspec.Struct):
    """Other parts of the file are ignored."""

    traceEvents: list[TraceEvent]  # noqa: N815 the name in the file
    deviceProperties: list[TraceDevice] = []  # noqa: N815 as above


def read(path: Path, most_bytes: int = MOST_BYTES) -> Trace:
    """The file may be gzipped. Raise `TraceError` if it can't be read."""
    shown = printable(str(path))
    try:
        return decode(_bytes(path, most_bytes))
    except OSError as error:
        raise TraceError(f"{shown}: {error.strerror or 'the gzip file is damaged'}") from None
    except (EOFError, zlib.error):
        raise TraceError(f"{shown}: the gzip file is damaged or ends early") from None
    except TraceError:
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise TraceError(f"{shown}: no trace of torch.profiler can be read from this file: {_short(error)}") from None


def decode(data: bytes | bytearray) -> Trace:
    """Decode an object with the key `traceEvents`, or a list of events."""
    try:
        content = msgspec.json.decode(data, type=Trace | list[TraceEvent])
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Kineto does not escape all names: control characters, bytes that aren't UTF-8, NaN
        lenient = json.loads(data.decode(errors="replace"), strict=False)
        content = msgspec.convert(lenient, type=Trace | list[TraceEvent])
    return content if isinstance(content, Trace) else Trace(traceEvents=content)


def _bytes(path: Path, most: int) -> bytearray:
    """Return the uncompressed bytes, or raise `TraceError`."""
    with path.open("rb") as plain:
        zipped = plain.read(2) == _GZIP
    data = bytearray()
    with gzip.open(path) if zipped else path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            data += chunk
            if len(data) > most:
                raise TraceError(
                    f"{printable(str(path))}: the trace has more than {most / 1e9:g} GB of JSON. "
                    "Record fewer steps, or no stacks."
                )
    return data


def _short(error: Exception) -> str:
    return printable(str(error).splitlines()[0] if str(error) else type(error).__name__)[:200]


def number(value: object) -> float | None:
    """Return None if the value is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        finite = float(value)
    except (ValueError, OverflowError):
        return None
    return finite if math.isfinite(finite) else None
