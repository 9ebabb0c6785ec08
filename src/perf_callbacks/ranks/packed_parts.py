"""Pack ranks' data of a window into bytes for the store: a header in JSON, then columns. Nothing is unpickled.

Foreign, incomplete or damaged bytes are dropped. The byte order is the machine's, because all ranks of a job run on the
same kind of machine. The first bytes contain the version of the layout.
"""

import json
import struct
from array import array
from typing import Any
from zlib import crc32

from perf_callbacks.kernel.engine.resources import RESOURCES
from perf_callbacks.ranks.bundles import Bundle, bundled

VERSION = 4
"""Version of the layout of the bytes. The version changes when the fields of the header change."""

_MAGIC = b"pcw" + bytes([VERSION])
_FRAME = struct.Struct("=4sIII")  # magic and version, numbers of bytes of header and columns, checksum


def pack_bundle(bundle: Bundle, fit: bytes) -> bytes:
    """Pack a bundle into bytes. `fit` is 16 bytes that identify the fit. Packed bundles may be concatenated."""
    counts = bundle.window, bundle.length, bundle.world_size, bundle.data_parallel, bundle.steps, bundle.attempt
    others = bundle.seconds, bundle.amounts, bundle.asks, bundle.axes, bundle.names, len(bundle.ranks)
    header = fit + json.dumps([*counts, *others], separators=(",", ":")).encode()
    arrays = bundle.ranks, bundle.places, bundle.resources, bundle.columns
    columns = b"".join([one.tobytes() for one in arrays])
    return _FRAME.pack(_MAGIC, len(header), len(columns), crc32(columns, crc32(header))) + header + columns


def unpack_bundles(blob: bytes, fit: bytes) -> list[Bundle]:
    """Return the bundles in `blob` that belong to the fit."""
    bundles, at = [], 0
    while at + _FRAME.size <= len(blob):
        magic, of_header, of_columns, checksum = _FRAME.unpack_from(blob, at)
        start = at + _FRAME.size
        at = start + of_header + of_columns
        if magic != _MAGIC or at > len(blob):
            break
        if blob.startswith(fit, start) and crc32(memoryview(blob)[start:at]) == checksum:
            bundles.append(_bundle(blob[start + len(fit) : start + of_header], blob[start + of_header : at]))
    return bundles


def bundle_again(blob: bytes, fit: bytes) -> bytes:
    """Unpack the bundles in `blob`, merge them where possible, and pack the result."""
    return b"".join([pack_bundle(one, fit) for one in bundled(unpack_bundles(blob, fit))])


def _bundle(header: bytes, columns: bytes) -> Bundle:
    *counts, seconds, amounts, asks, axes, names, count = json.loads(header)
    window, length, world_size, data_parallel, steps, attempt = counts
    arrays: list[Any] = []
    at = 0
    for kind, number in ("I", 1), ("q", len(axes)), ("f", len(RESOURCES)), ("f", len(names) * length):
        arrays.append(array(kind))
        size = number * count * arrays[-1].itemsize
        arrays[-1].frombytes(columns[at : at + size])
        at += size
    ranks, places, resources, signals = arrays
    return Bundle(
        window=window,
        length=length,
        world_size=world_size,
        data_parallel=data_parallel,
        steps=steps,
        attempt=attempt,
        seconds=seconds,
        amounts=tuple(amounts),
        asks=asks,
        ranks=ranks,
        axes=tuple(axes),
        places=places,
        names=tuple(names),
        columns=signals,
        resources=resources,
    )
