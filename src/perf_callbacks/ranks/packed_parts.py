"""Ranks' data of a window as bytes for the store: a header in JSON, then columns. Nothing is unpickled.

Foreign or damaged bytes and impossible numbers are dropped: another version of this package may have more resources,
which would shift all signals. Byte order is the machine's: a job has one kind.
"""

import json
import struct
from array import array
from math import inf
from typing import Annotated, Any
from zlib import crc32

import msgspec

from perf_callbacks.kernel.engine.resources import RESOURCES
from perf_callbacks.ranks.bundles import Bundle, bundled

VERSION = 4
"""Changes when the fields of the header change."""

_MAGIC = b"pcw" + bytes([VERSION])
_FRAME = struct.Struct("=4sIII")  # magic and version, numbers of bytes of header and columns, checksum

Amount = Annotated[int, msgspec.Meta(ge=0)]


class _Header(msgspec.Struct, array_like=True, gc=False):
    """The fields of a `Bundle` before its columns, in this order in the JSON."""

    window: Amount
    length: Amount
    world_size: Amount
    data_parallel: Amount
    steps: Amount
    attempt: Amount
    seconds: float
    amounts: tuple[Amount | None, Amount | None, Amount | None, Amount | None, Amount | None]
    asks: dict[str, Amount]
    axes: tuple[str, ...]
    names: tuple[str, ...]
    count: Amount
    """Number of ranks."""

    @property
    def possible(self) -> bool:
        """True if the counts fit together."""
        counts = 0 < self.length >= self.steps and 0 < self.data_parallel <= self.world_size
        return counts and 0 <= self.seconds < inf and 0 < self.count <= self.world_size


_HEADER = msgspec.json.Decoder(_Header)


def pack_bundle(bundle: Bundle, fit: bytes) -> bytes:
    """`fit` is 16 bytes that identify the fit. Packed bundles may be concatenated."""
    counts = bundle.window, bundle.length, bundle.world_size, bundle.data_parallel, bundle.steps, bundle.attempt
    others = bundle.seconds, bundle.amounts, bundle.asks, bundle.axes, bundle.names, len(bundle.ranks)
    header = fit + json.dumps([*counts, *others], separators=(",", ":")).encode()  # msgspec writes 64 bits at most
    arrays = bundle.ranks, bundle.places, bundle.resources, bundle.columns
    columns = b"".join([column.tobytes() for column in arrays])
    return _FRAME.pack(_MAGIC, len(header), len(columns), crc32(columns, crc32(header))) + header + columns


def unpack_bundles(blob: bytes, fit: bytes) -> list[Bundle]:
    bundles, at = [], 0
    while at + _FRAME.size <= len(blob):
        magic, of_header, of_columns, checksum = _FRAME.unpack_from(blob, at)
        start = at + _FRAME.size
        at = start + of_header + of_columns
        if magic != _MAGIC or at > len(blob):
            break
        if blob.startswith(fit, start) and crc32(memoryview(blob)[start:at]) == checksum:
            bundle = _bundle(blob[start + len(fit) : start + of_header], blob[start + of_header : at])
            if bundle is not None:
                bundles.append(bundle)
    return bundles


def bundle_again(blob: bytes, fit: bytes) -> bytes:
    return b"".join([pack_bundle(bundle, fit) for bundle in bundled(unpack_bundles(blob, fit))])


def _bundle(header: bytes, columns: bytes) -> Bundle | None:
    """None: the numbers are impossible."""
    try:
        head = _HEADER.decode(header)
    except (msgspec.DecodeError, UnicodeError, RecursionError):  # before msgspec 0.20, `DecodeError` is no `ValueError`
        return None
    count, arrays, sizes = head.count, list[Any](), list[int]()
    for kind, number in ("I", 1), ("q", len(head.axes)), ("f", len(RESOURCES)), ("f", len(head.names) * head.length):
        arrays.append(array(kind))
        sizes.append(number * count * arrays[-1].itemsize)
    if not head.possible or sum(sizes) != len(columns):
        return None
    at = 0
    for numbers, size in zip(arrays, sizes, strict=True):
        numbers.frombytes(columns[at : at + size])
        at += size
    ranks, places, resources, signals = arrays
    if [*ranks] != sorted({*ranks}) or ranks[-1] >= head.world_size:
        return None
    return Bundle(
        window=head.window,
        length=head.length,
        world_size=head.world_size,
        data_parallel=head.data_parallel,
        steps=head.steps,
        attempt=head.attempt,
        seconds=head.seconds,
        amounts=head.amounts,
        asks=head.asks,
        ranks=ranks,
        axes=head.axes,
        places=places,
        names=head.names,
        columns=signals,
        resources=resources,
    )
