"""Pack ranks' data of a window into bytes for the store: a header, then columns. Nothing is unpickled.

Foreign, incomplete or damaged bytes are dropped. The byte order is the machine's, because all ranks of a job run on the
same kind of machine. The first bytes contain the version of the layout.
"""

import json
import struct
from array import array
from collections.abc import Mapping
from functools import lru_cache
from math import inf
from zlib import crc32

from perf_callbacks.kernel.engine.resources import RESOURCES
from perf_callbacks.ranks.bundles import Bundle, bundled

VERSION = 3
"""Version of the layout of the bytes. The version changes when the fields of the header change."""

MOST_ATTEMPTS = 2**32 - 1
"""Largest attempt number that fits into a packed bundle."""

_FRAME = struct.Struct("=4sII")  # magic and version, number of bytes that follow, their checksum
_MAGIC = b"pcw" + bytes([VERSION])
_HEADER = struct.Struct("=16sQIIIIIIIId16s16s16s16s16s")
_NOT_KNOWN = b"\xff" * 16


def pack_bundle(bundle: Bundle, fit: bytes) -> bytes:
    """Pack a bundle into bytes. `fit` is 16 bytes that identify the fit. Packed bundles may be concatenated."""
    schema = _schema(bundle.names, tuple(bundle.asks), bundle.axes)
    header = _HEADER.pack(
        fit,
        bundle.window,
        bundle.length,
        bundle.world_size,
        bundle.data_parallel,
        bundle.steps,
        min(bundle.attempt, MOST_ATTEMPTS),
        len(bundle.ranks),
        len(schema),
        len(schema) + 8 * len(bundle.asks),
        bundle.seconds,
        *[_NOT_KNOWN if amount is None else amount.to_bytes(16, "little") for amount in bundle.amounts],
    )
    columns = array("q", bundle.asks.values()), bundle.ranks, bundle.places, bundle.resources, bundle.columns
    body = b"".join([header, schema, *[column.tobytes() for column in columns]])
    return _FRAME.pack(_MAGIC, len(body), crc32(body)) + body


def unpack_bundles(blob: bytes, fit: bytes) -> list[Bundle]:
    """Return the bundles in `blob` that belong to the fit."""
    bundles, at, view = [], 0, memoryview(blob)
    while at + _FRAME.size <= len(blob):
        magic, length, checksum = _FRAME.unpack_from(blob, at)
        start = at + _FRAME.size
        at = start + length
        if magic != _MAGIC or at > len(blob):
            break
        body = view[start:at]
        if crc32(body) == checksum and body[: len(fit)] == fit:
            bundle = _bundle(body)
            if bundle is not None:
                bundles.append(bundle)
    return bundles


def bundle_again(blob: bytes, fit: bytes) -> bytes:
    """Unpack the bundles in `blob`, merge them where possible, and pack the result."""
    return b"".join([pack_bundle(one, fit) for one in bundled(unpack_bundles(blob, fit))])


def _bundle(body: memoryview) -> Bundle | None:
    """Unpack a bundle, or return None if the bundle's numbers are impossible."""
    try:
        (
            _, window, length, world_size, parallel, steps, attempt, count, schema_size, asked_size, seconds, *amounts,
        ) = _HEADER.unpack_from(body)  # fmt: skip
        ranks_at = _HEADER.size + asked_size
        names, asks, axes = _asked(bytes(body[_HEADER.size : ranks_at]), schema_size)
        places_at = ranks_at + 4 * count
        resources_at = places_at + 8 * count * len(axes)
        columns_at = resources_at + 4 * count * len(RESOURCES)
        ranks, places, resources, columns = array("I"), array("q"), array("f"), array("f")
        ranks.frombytes(body[ranks_at:places_at])
        places.frombytes(body[places_at:resources_at])
        resources.frombytes(body[resources_at:columns_at])
        columns.frombytes(body[columns_at:])
    except (struct.error, TypeError, ValueError, RecursionError):
        return None
    if not 0 < len(ranks) == count or [*ranks] != sorted({*ranks}) or ranks[-1] >= world_size:
        return None
    if len(columns) != count * len(names) * length or len(places) != count * len(axes):
        return None
    if len(resources) != count * len(RESOURCES):
        return None
    if not (0 < length >= steps and 0 < parallel <= world_size and 0 <= seconds < inf):
        return None
    return Bundle(
        window=window,
        length=length,
        world_size=world_size,
        data_parallel=parallel,
        steps=steps,
        attempt=attempt,
        seconds=seconds,
        amounts=tuple([None if amount == _NOT_KNOWN else int.from_bytes(amount, "little") for amount in amounts]),
        asks=asks,
        ranks=ranks,
        axes=axes,
        places=places,
        names=names,
        columns=columns,
        resources=resources,
    )


@lru_cache(64)
def _schema(*names: tuple[str, ...]) -> bytes:
    return json.dumps(names).encode()


@lru_cache(64)  # the ranks of a job have the same names and usually the same asks: parse the text once
def _asked(schema_and_values: bytes, schema_size: int) -> tuple[tuple[str, ...], Mapping[str, int], tuple[str, ...]]:
    """Read the names of the signals, the values that the ranks propose, and the names of the coordinates."""
    signals, asks, role = [tuple(map(str, names)) for names in json.loads(schema_and_values[:schema_size])]
    values = array("q", schema_and_values[schema_size:])
    if min(values, default=0) < 0:
        raise ValueError(values)
    return signals, dict(zip(asks, values, strict=True)), role
