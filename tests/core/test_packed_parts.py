"""Parts of windows as bytes: they come back as they were, or not at all."""

import math
import struct
from array import array
from dataclasses import replace
from zlib import crc32

import pytest

from perf_callbacks.core.packed_parts import pack_part, unpack_parts
from perf_callbacks.core.windows import Part

FIT, OTHER_FIT = bytes(range(16)), bytes(16)
PART = Part(
    window=2,
    length=50,
    rank=0,
    world_size=2,
    data_parallel=2,
    steps=49,
    seconds=12.5,
    samples=400,
    tokens=51_200,
    useful_tokens=None,
    model_flops=10**20,
    asks={"gc_interval": 50, "keep gc": 1},
    signals={"gc": array("f", [0.0] * 50), "data": array("f", [0.5, 0.25] * 25)},
    role={"data": 3, "tensor": 0},
    attempt=2,
)
BARE = replace(PART, rank=1, seconds=0.0, samples=None, model_flops=None, asks={}, signals={}, role={})
FRAME = 12
"""Bytes before the body of a part: magic, length, checksum."""


def unpacked(blob, fit=FIT):
    return list(unpack_parts(blob, fit))


def test_parts_come_back_as_they_were_one_after_the_other():
    blob = b"".join([pack_part(part, FIT) for part in (PART, BARE, PART)])
    assert unpacked(blob) == [PART, BARE, PART]
    assert unpacked(b"") == []


def test_a_number_of_attempts_that_is_too_large_is_the_largest():
    assert unpacked(pack_part(replace(PART, attempt=2**32), FIT)) == [replace(PART, attempt=2**32 - 1)]


def test_unknown_seconds_of_a_step_stay_unknown():
    column = array("f", [math.nan, *[1.0] * 49])
    (part,) = unpacked(pack_part(replace(PART, signals={"data": column}), FIT))
    assert math.isnan(part.signals["data"][0])
    assert part.signals["data"][1:] == column[1:]


def test_fifty_steps_of_six_signals_take_less_than_two_kilobytes():
    signals = {name: array("f", [0.5] * 50) for name in "abcdef"}
    assert len(pack_part(replace(PART, signals=signals), FIT)) < 1500


def test_a_part_of_another_fit_is_none():
    assert unpacked(pack_part(PART, OTHER_FIT)) == []
    assert unpacked(pack_part(PART, OTHER_FIT) + pack_part(BARE, FIT)) == [BARE]


def test_what_is_torn_anywhere_is_nothing():
    blob = pack_part(PART, FIT)
    assert [unpacked(blob[:cut]) for cut in range(len(blob))] == [[]] * len(blob)
    assert [unpacked(blob[cut:]) for cut in range(1, len(blob))] == [[]] * (len(blob) - 1)


@pytest.mark.parametrize("at", range(0, len(pack_part(PART, FIT)), 7))
def test_a_damaged_part_costs_no_other(at):
    blob = bytearray(pack_part(PART, FIT))
    blob[at] ^= 0x10
    found = unpacked(pack_part(BARE, FIT) + bytes(blob))
    assert found == [BARE]


@pytest.mark.parametrize("garbage", [b"x", b"\x00" * 1000, b"[2,50,0]", b"\x80\x04\x95", pack_part(PART, FIT)[::-1]])
def test_foreign_bytes_are_no_error(garbage):
    assert unpacked(garbage) == []


def forged(change):
    """Return a part of which somebody changed the body, and mended the checksum."""
    body = bytearray(pack_part(PART, FIT)[FRAME:])
    change(body)
    return struct.pack("=4sII", pack_part(PART, FIT)[:4], len(body), crc32(body)) + bytes(body)


def put(form, at, *values):
    return lambda body: struct.pack_into(form, body, at, *values)


@pytest.mark.parametrize(
    "change",
    [
        put("=I", 24, 0),  # length
        put("=I", 24, 51),
        put("=I", 28, 2),  # rank
        put("=I", 32, 0),  # world size
        put("=I", 36, 0),  # data parallel
        put("=I", 36, 3),
        put("=I", 40, 51),  # steps
        put("=I", 48, 1),  # bytes of the names
        put("=I", 48, 2**32 - 1),
        put("=I", 52, 1),  # and of what is asked for
        put("=I", 52, 2**32 - 1),
        put("=d", 56, math.nan),  # seconds
        put("=d", 56, math.inf),
        put("=d", 56, -1.0),
        put("=q", 64, -2),  # samples
        lambda body: body.extend(b"\x00" * 4),
        lambda body: body.extend(b"\x00"),
        lambda body: body.__delitem__(slice(-4, None)),
        lambda body: body.__delitem__(slice(64, None)),
        lambda body: body.__setitem__(slice(120, 122), b"{["),
        lambda body: body.__setitem__(slice(120, 122), b"\xff\xff"),
        lambda body: body.__setitem__(slice(120, 130), b"[1, 2, 3] "),
    ],
)
def test_numbers_that_can_not_be_true_are_no_part(change):
    assert unpacked(forged(lambda body: None)) == [PART]
    assert unpacked(forged(change)) == []


def test_values_that_nobody_can_ask_for_are_no_part():
    with pytest.raises(OverflowError):
        pack_part(replace(PART, asks={"gc_interval": 2**64}), FIT)
    assert unpacked(pack_part(replace(PART, asks={"gc_interval": -1}), FIT)) == []
