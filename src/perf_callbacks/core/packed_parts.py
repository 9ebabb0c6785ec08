"""Parts of windows as bytes, for the store: a header, then columns. Nothing is unpickled.

A foreign, torn or damaged part is dropped, and costs no other part. The bytes are those of this machine's kind: all
ranks of a job run the same version on the same kind of machine, and others are told by the first number.
"""

import json
import struct
from array import array
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from math import isfinite
from zlib import crc32

from perf_callbacks.core.windows import Part

VERSION = 1
"""Version of the layout. It changes with the columns of the header."""

_FRAME = struct.Struct("=4sII")  # magic and version, bytes that follow, checksum of these
_MAGIC = b"pcw" + bytes([VERSION])
_HEADER = struct.Struct("=16sQIIIIIIIdqqq16s16s")
_NOT_KNOWN, _NO_FLOPS = -1, b"\xff" * 16
_EMPTY: Mapping[str, "array[float]"] = {}


def pack_part(part: Part, fit: bytes) -> bytes:
    """Turn a part of a fit, known by 16 bytes, into bytes. Several of these may be joined."""
    schema = _schema(tuple(part.signals), tuple(part.asks), tuple(part.role))
    header = _HEADER.pack(
        fit,
        part.window,
        part.length,
        part.rank,
        part.world_size,
        part.data_parallel,
        part.steps,
        part.attempt,
        len(schema),
        part.seconds,
        *[_NOT_KNOWN if amount is None else amount for amount in (part.samples, part.tokens, part.useful_tokens)],
        *[_flops(amount) for amount in (part.model_flops, part.hardware_flops)],
    )
    numbers = array("q", [*part.asks.values(), *part.role.values()])
    columns = [column.tobytes() for column in part.signals.values()]
    body = b"".join([header, schema, numbers.tobytes(), *columns])
    return _FRAME.pack(_MAGIC, len(body), crc32(body)) + body


def unpack_parts(blob: bytes, fit: bytes) -> Iterator[Part]:
    """Return the parts of that fit in some bytes, one after the other."""
    at = 0
    while at + _FRAME.size <= len(blob):
        magic, length, checksum = _FRAME.unpack_from(blob, at)
        start, at = at + _FRAME.size, at + _FRAME.size + length
        if magic != _MAGIC or at > len(blob):
            return
        body = blob[start:at]
        if crc32(body) == checksum and body[:16] == fit:
            part = _part(body)
            if part is not None:
                yield part


def _part(body: bytes) -> Part | None:
    """Build a part; None if its numbers can't be true."""
    try:
        (_, window, length, rank, world, parallel, steps, attempt, schema_size, seconds, *amounts, model, hardware) = (
            _HEADER.unpack_from(body)
        )
        at = _HEADER.size + schema_size
        signals, asks, role = _names(body[_HEADER.size : at])
        numbers = array("q", body[at : at + 8 * (len(asks) + len(role))])
        at += 8 * len(numbers)
        columns = array("f", body[at:])
    except (struct.error, ValueError):
        return None
    whole = len(numbers) == len(asks) + len(role) and len(columns) == len(signals) * length
    if not whole or rank >= world or not 0 < parallel <= world or steps > length or not length:
        return None
    if not (isfinite(seconds) and seconds >= 0) or min(amounts) < _NOT_KNOWN or min(numbers, default=0) < 0:
        return None
    samples, tokens, useful_tokens = [None if amount == _NOT_KNOWN else amount for amount in amounts]
    return Part(
        window=window,
        length=length,
        rank=rank,
        world_size=world,
        data_parallel=parallel,
        steps=steps,
        seconds=seconds,
        samples=samples,
        tokens=tokens,
        useful_tokens=useful_tokens,
        model_flops=None if model == _NO_FLOPS else int.from_bytes(model, "little"),
        hardware_flops=None if hardware == _NO_FLOPS else int.from_bytes(hardware, "little"),
        asks=dict(zip(asks, numbers, strict=False)),
        signals={name: columns[n * length : (n + 1) * length] for n, name in enumerate(signals)} or _EMPTY,
        role=dict(zip(role, islice(numbers, len(asks), None), strict=True)),
        attempt=attempt,
    )


@lru_cache(64)
def _schema(*names: tuple[str, ...]) -> bytes:
    return json.dumps(names).encode()


@lru_cache(64)  # the ranks of a job have the same names, so that they are read once
def _names(schema: bytes) -> tuple[tuple[str, ...], ...]:
    """Read the names of the signals, of the values asked for, and of the coordinates."""
    signals, asks, role = json.loads(schema)
    names = [tuple([str(name) for name in group]) for group in (signals, asks, role)]
    return tuple(names)


def _flops(amount: int | None) -> bytes:
    return _NO_FLOPS if amount is None else amount.to_bytes(16, "little")
