"""Parts of windows as bytes, for the store: a header, then columns. Nothing is unpickled.

A foreign, torn or damaged part is dropped, and costs no other part. The bytes are those of this machine's kind: all
ranks of a job run the same version on the same kind of machine, and others are told by the first number.
"""

import json
import struct
from array import array
from collections.abc import Mapping
from functools import lru_cache
from math import inf
from zlib import crc32

from perf_callbacks.core.windows import Part

VERSION = 1
"""Version of the layout. It changes with the columns of the header."""

MOST_ATTEMPTS = 2**32 - 1
"""Largest number of an attempt that a part can carry."""

_FRAME = struct.Struct("=4sII")  # magic and version, bytes that follow, checksum of these
FRAME = _FRAME.size
"""Bytes before the body of a part."""

_MAGIC = b"pcw" + bytes([VERSION])
_HEADER = struct.Struct("=16sQIIIIIIIIdqqq16s16s")
_NOT_KNOWN, _NO_FLOPS = -1, b"\xff" * 16
_NO_ROLE: Mapping[str, int] = {}


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
        min(part.attempt, MOST_ATTEMPTS),
        len(schema),
        len(schema) + 8 * len(part.asks),
        part.seconds,
        *[_NOT_KNOWN if amount is None else amount for amount in (part.samples, part.tokens, part.useful_tokens)],
        *[_flops(amount) for amount in (part.model_flops, part.hardware_flops)],
    )
    numbers = [array("q", values.values()).tobytes() for values in (part.asks, part.role)]
    body = b"".join([header, schema, *numbers, *[column.tobytes() for column in part.signals.values()]])
    return _FRAME.pack(_MAGIC, len(body), crc32(body)) + body


def unpack_parts(blob: bytes, fit: bytes) -> list[Part]:
    """Return the parts of that fit in some bytes."""
    parts, at = [], 0
    while at + FRAME <= len(blob):
        magic, length, checksum = _FRAME.unpack_from(blob, at)
        start, at = at + FRAME, at + FRAME + length
        if magic != _MAGIC or at > len(blob):
            break
        body = blob[start:at]
        if crc32(body) == checksum and body.startswith(fit):
            part = _part(body)
            if part is not None:
                parts.append(part)
    return parts


def _part(body: bytes) -> Part | None:
    """Build a part; None if its numbers can't be true. Rank 0 does this thousands of times per window."""
    try:
        (
            _, window, length, rank, world_size, parallel, steps, attempt, schema_size, asked_size,
            seconds, samples, tokens, useful_tokens, model, hardware,
        ) = _HEADER.unpack_from(body)  # fmt: skip
        role_at = _HEADER.size + asked_size
        names, asks, role_names = _asked(body[_HEADER.size : role_at], schema_size)
        columns_at = role_at + 8 * len(role_names)
        columns = array("f", body[columns_at:])
        role = array("q", body[role_at:columns_at]) if role_names else ()
    except (struct.error, TypeError, ValueError, RecursionError):
        return None
    if len(columns) != len(names) * length or not steps <= length or rank >= world_size or length == 0:
        return None
    if not (0 < parallel <= world_size and 0 <= seconds < inf and min(samples, tokens, useful_tokens) >= _NOT_KNOWN):
        return None
    signals, at = {}, 0
    for name in names:
        signals[name] = columns[at : at + length]
        at += length
    return Part(
        window=window,
        length=length,
        rank=rank,
        world_size=world_size,
        data_parallel=parallel,
        steps=steps,
        seconds=seconds,
        samples=None if samples == _NOT_KNOWN else samples,
        tokens=None if tokens == _NOT_KNOWN else tokens,
        useful_tokens=None if useful_tokens == _NOT_KNOWN else useful_tokens,
        model_flops=None if model == _NO_FLOPS else int.from_bytes(model, "little"),
        hardware_flops=None if hardware == _NO_FLOPS else int.from_bytes(hardware, "little"),
        asks=asks,
        signals=signals,
        role=dict(zip(role_names, role, strict=True)) if role_names else _NO_ROLE,
        attempt=attempt,
    )


@lru_cache(64)
def _schema(*names: tuple[str, ...]) -> bytes:
    return json.dumps(names).encode()


@lru_cache(64)  # the ranks of a job have the same names and as a rule the same asks, so that they are read once
def _asked(schema_and_values: bytes, schema_size: int) -> tuple[tuple[str, ...], Mapping[str, int], tuple[str, ...]]:
    """Read the names of the signals, the values that are asked for, and the names of the coordinates."""
    signals, asks, role = [tuple(map(str, names)) for names in json.loads(schema_and_values[:schema_size])]
    values = array("q", schema_and_values[schema_size:])
    if min(values, default=0) < 0:
        raise ValueError(values)
    return signals, dict(zip(asks, values, strict=True)), role


def _flops(amount: int | None) -> bytes:
    return _NO_FLOPS if amount is None else amount.to_bytes(16, "little")
