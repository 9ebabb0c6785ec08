"""Parts of windows as bytes: they come back as they were, or not at all."""

import json
import math
import struct
from array import array
from dataclasses import replace
from zlib import crc32

from jobs.parts import PART
from rows import each_row

from perf_callbacks.kernel.engine.resources import RESOURCES
from perf_callbacks.kernel.engine.window_sharing import MOST_STEPS
from perf_callbacks.kernel.engine.windows import Part
from perf_callbacks.ranks.bundles import MOST, Bundle
from perf_callbacks.ranks.packed_parts import bundle_again, pack_bundle, unpack_bundles
from perf_callbacks.ranks.store import LARGEST

FIT, OTHER_FIT = bytes(range(16)), bytes(16)
FULL = replace(
    PART,
    model_flops=10**20,
    signals={"gc": array("f", [0.0] * 50), "data": array("f", [0.5, 0.25] * 25)},
    role={"data": 3, "tensor": 0},
    resources={"cpu_cores": 1.5, "power_watts": 400.0},
    attempt=2,
)
BARE = replace(FULL, rank=1, seconds=0.0, samples=None, model_flops=None, asks={}, signals={}, role={}, resources={})
FRAME = 16
"""Bytes before the header of a bundle: magic, two lengths, checksum."""


def pack_part(part, fit):
    return pack_bundle(Bundle.from_part(part), fit)


def unpacked(blob, fit=FIT):
    """Unpack bundles of one part each."""
    return [part_of(bundle) for bundle in unpack_bundles(blob, fit)]


def part_of(bundle):
    ((rank, signals),) = bundle.signals().items()
    amounts = dict(
        zip(("samples", "tokens", "useful_tokens", "model_flops", "hardware_flops"), bundle.amounts, strict=True)
    )
    same = {
        name: getattr(bundle, name) for name in ("window", "length", "world_size", "data_parallel", "steps", "seconds")
    }
    role = bundle.roles().get(rank, {})
    amounts_used = zip(RESOURCES, bundle.resources, strict=True)
    resources = {name: value for name, value in amounts_used if value >= 0}
    others = {"role": role, "resources": resources, "asks": bundle.asks, "attempt": bundle.attempt}
    return Part(rank=rank, signals=signals, **others, **same, **amounts)


def test_unknown_seconds_of_a_step_stay_unknown():
    column = array("f", [math.nan, *[1.0] * 49])
    (part,) = unpacked(pack_part(replace(FULL, signals={"data": column}), FIT))
    assert math.isnan(part.signals["data"][0])
    assert part.signals["data"][1:] == column[1:]


def test_fifty_steps_of_six_signals_take_less_than_two_kilobytes():
    signals = {name: array("f", [0.5] * 50) for name in "abcdef"}
    assert len(pack_part(replace(FULL, signals=signals), FIT)) < 1500


def test_a_part_of_another_fit_is_none():
    assert unpacked(pack_part(FULL, OTHER_FIT)) == []
    assert unpacked(pack_part(FULL, OTHER_FIT) + pack_part(BARE, FIT)) == [BARE]


@each_row("at", range(0, len(pack_part(FULL, FIT)), 7))
def test_a_damaged_part_costs_no_other(at):
    blob = bytearray(pack_part(FULL, FIT))
    blob[at] ^= 0x10
    assert unpacked(pack_part(BARE, FIT) + bytes(blob)) == [BARE]


def forged(header=None, columns=None):
    """Return a part of which somebody changed the header or the columns, and mended the checksum."""
    packed = pack_part(FULL, FIT)
    _, of_header, *_ = struct.unpack_from("=4sIII", packed)
    fields, numbers = json.loads(packed[FRAME + 16 : FRAME + of_header]), bytearray(packed[FRAME + of_header :])
    if columns is not None:
        columns(numbers)
    if not isinstance(header, bytes):
        for place, value in (header or {}).items():
            fields[place] = value
        header = json.dumps(fields).encode()
    text = FIT + header
    frame = struct.pack("=4sIII", packed[:4], len(text), len(numbers), crc32(numbers, crc32(text)))
    return frame + text + numbers


WINDOW, STEPS_OF_WINDOW, WORLD_SIZE, DATA_PARALLEL, STEPS, ATTEMPT, SECONDS, AMOUNTS, ASKS, AXES, NAMES, COUNT = range(
    12
)


@each_row(
    ("header", "columns"),
    [
        ({WINDOW: -1}, None),
        ({WINDOW: "1"}, None),
        ({STEPS_OF_WINDOW: 0}, None),
        ({STEPS_OF_WINDOW: 51}, None),
        ({STEPS_OF_WINDOW: 2**200}, None),
        ({WORLD_SIZE: 0}, None),
        ({DATA_PARALLEL: 0}, None),
        ({DATA_PARALLEL: 3}, None),
        ({STEPS: 51}, None),
        ({ATTEMPT: None}, None),
        ({SECONDS: math.nan}, None),
        ({SECONDS: math.inf}, None),
        ({SECONDS: -1.0}, None),
        ({AMOUNTS: [1, 2, 3, 4]}, None),
        ({AMOUNTS: [1, 2, 3, 4, -5]}, None),
        ({AMOUNTS: [1, 2, 3, 4, 5.5]}, None),
        ({ASKS: {"gc_interval": -1}}, None),
        ({ASKS: []}, None),
        ({AXES: []}, None),
        ({AXES: ["data"] * 3}, None),
        ({NAMES: ["data"]}, None),
        ({NAMES: [1]}, None),
        ({COUNT: 0}, None),
        ({COUNT: 2}, None),
        ({COUNT: 2**100}, None),
        (b"", None),
        (b"[]", None),
        (b"{}", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
        (None, lambda columns: struct.pack_into("=I", columns, 0, 2)),  # rank
        (None, lambda columns: columns.extend(b"\x00" * 4)),  # as with a further resource in another version
        (None, lambda columns: columns.extend(b"\x00")),
        (None, lambda columns: columns.__delitem__(slice(-4, None))),
        (None, lambda columns: columns.clear()),
    ],
)
def test_numbers_that_can_not_be_true_are_no_part(header, columns):
    assert unpacked(forged()) == [FULL]
    assert unpacked(forged(header, columns)) == []


def test_ranks_out_of_order_or_twice_are_no_bundle():
    ranks = [replace(FULL, rank=rank) for rank in (0, 1)]
    for wrong in (ranks[::-1], [ranks[0]] * 2):
        assert unpack_bundles(bundle_again(b"".join([pack_part(part, FIT) for part in wrong]), FIT), FIT) == []


def test_ranks_that_counted_alike_share_a_bundle_and_others_do_not():
    parts = [replace(FULL, rank=rank, world_size=8, seconds=12.0 + rank, samples=rank) for rank in range(4)]
    parts[1:3] = replace(parts[1], steps=48), replace(parts[2], asks={"gc_interval": 40, "other": 1})
    bundles = unpack_bundles(bundle_again(b"".join([pack_part(part, FIT) for part in parts]), FIT), FIT)
    assert [([*bundle.ranks], bundle.steps, bundle.seconds, bundle.amounts[0], bundle.asks) for bundle in bundles] == [
        ([0, 2, 3], 49, 15.0, 5, {"gc_interval": 40}),
        ([1], 48, 13.0, 1, FULL.asks),
    ]
    assert [rank for bundle in bundles for rank in bundle.signals()] == [0, 2, 3, 1]


@each_row("amount", [-1, MOST, 2**128, 10**100])
def test_an_amount_that_can_not_be_true_is_unknown(amount):
    (bundle,) = unpack_bundles(pack_part(replace(FULL, samples=2**63, useful_tokens=amount), FIT), FIT)
    assert bundle.amounts[:3] == (2**63, FULL.tokens, None)


def test_the_longest_windows_that_carry_signals_fit_into_a_note_many_times():
    signals = {name: array("f", [0.5] * MOST_STEPS) for name in "abcdefgh"}
    asks = {f"keep item {item}": 1 for item in range(100)}
    assert len(pack_part(replace(FULL, length=MOST_STEPS, signals=signals, asks=asks), FIT)) < LARGEST / 25
