"""What fits, by a measured or a simulated step."""

from dataclasses import replace

import pytest
from rows import each_row

from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.kernel.records.module_records import OTHERS, ModuleWork
from perf_callbacks.kernel.units import GB
from perf_callbacks.memory.estimate import (
    SHARDED,
    Layers,
    SimulatedStep,
    fitting_micro_batch,
    growth_gb,
    headroom_gb,
    largest,
    layers_of,
    layers_to_checkpoint,
    on_rank,
)

PARTS = Memory(step=2, device="cuda", weights_gb=2.0, gradients_gb=2.0, optimizer_gb=4.0, peak_gb=14.0, micro_batch=8)


def test_a_measured_step_says_which_micro_batch_fits():
    assert growth_gb(PARTS) == 8.0
    assert fitting_micro_batch(PARTS, headroom_gb(PARTS, limit_gb=18.5)) == 12
    assert fitting_micro_batch(PARTS, headroom_gb(PARTS, limit_gb=6.9)) == 0
    assert fitting_micro_batch(PARTS, headroom_gb(PARTS)) is None  # nobody knows what is left


@each_row(("headroom", "batch"), [(3.9, 0), (4.0, 0), (6.0, 4), (7.9, 7), (8.0, 8), (16.0, 16)])
def test_gradients_stay_as_large_with_a_smaller_micro_batch(headroom, batch):
    parts = replace(PARTS, temporary_gb=2.0)  # 8 GB grow at most, of which 4 GB do not
    assert fitting_micro_batch(parts, headroom) == batch


def test_without_room_for_gradients_no_checkpointing_is_enough():
    assert layers_to_checkpoint(replace(PARTS, temporary_gb=2.0), 3.9, Layers("layers.*", 100, 1.0), 8) is None


@pytest.mark.parametrize("known", [{"micro_batch": None}, {"peak_gb": None}, {"weights_gb": None}, {"peak_gb": 5.0}])
def test_a_step_that_was_measured_in_part_says_nothing(known):
    parts = Memory(**{name: getattr(PARTS, name) for name in ("step", "device", *PARTS_FIELDS)} | known)
    assert fitting_micro_batch(parts, 100.0) is None
    assert layers_to_checkpoint(parts, 1.0, Layers("layers.*", 4, 1.0), 8) is None


PARTS_FIELDS = ("weights_gb", "gradients_gb", "optimizer_gb", "peak_gb", "micro_batch")

MODULES = (
    ModuleWork(path="", activation_bytes=10**9),
    ModuleWork(path="layers.*", modules=4, activation_bytes=2 * 10**9),
    ModuleWork(path="layers.*.mlp", modules=4, activation_bytes=6 * 10**9),
    ModuleWork(path="other.*.mlp", modules=2, activation_bytes=10**9),
    ModuleWork(path=OTHERS, activation_bytes=10**9),
)


def test_the_layers_have_most_activations():
    assert layers_of(MODULES) == Layers("layers.*", 4, 1.5)
    assert layers_of(MODULES[:1]) is None
    assert layers_of([ModuleWork(path="layers.*", modules=4, activation_bytes=10**9)]) is None  # they keep their inputs


@pytest.mark.parametrize(("headroom", "batch", "enough"), [(8.0, 8, 0), (7.0, 8, 1), (3.5, 8, 3), (3.4, 8, None)])
def test_layers_to_checkpoint(headroom, batch, enough):
    assert layers_to_checkpoint(PARTS, headroom, layers_of(MODULES), batch) == enough


STEP = SimulatedStep(
    parts=Memory(step=2, device="cpu", activations_gb=3.0, peak_gb=24.0),
    passes=((6 * 10**9, 10**9), (0, 4 * 10**9)),
    optimizer_temporary=2 * 10**9,
    weights=6 * 10**9,
    gradients=6 * 10**9,
    optimizer=12 * 10**9,
)
"""Four layers of 1 GB, and 2 GB of weights outside of these."""


@each_row(
    ("sharding", "ranks", "peak", "exchange"),
    [
        ("none", 1, 26.0, None),
        ("ddp", 1, 26.0, None),
        ("ddp", 4, 32.0, 6.0),  # buckets
        ("zero1", 4, 6 + 3 + 6 + 1, None),  # in the backward, as the update is sharded
        ("zero2", 4, 6 + 3 + 4, None),  # at the end of the forward
        ("fsdp", 4, 1.5 + 3 + 4 + 4 + 3, 7.0),  # weights outside and of two layers, gradients outside and of one
    ],
)
def test_shares_of_a_rank(sharding, ranks, peak, exchange):
    found = on_rank(STEP, ranks, sharding, layers=4, layer_bytes=10**9)
    assert found["peak"] == pytest.approx(peak)
    assert found.get("exchange") == (None if exchange is None else pytest.approx(exchange))
    assert found["optimizer"] == pytest.approx(12 / (ranks if "optimizer" in SHARDED[sharding] else 1))
    assert found["activations"] == 3.0


def test_fsdp_holds_all_gradients_until_the_last_micro_batch():
    one, several = [on_rank(STEP, 4, "fsdp", 4, 10**9, accumulated=accumulated) for accumulated in (1, 2)]
    assert (one["gradients"], several["gradients"]) == (STEP.gradients / 4 / GB, STEP.gradients / GB)
    in_backward = max(kept for kept, _ in STEP.passes)
    assert one["peak"] < several["peak"] <= one["peak"] + 3 / 4 * in_backward / GB
    assert on_rank(STEP, 4, "zero3", 4, 10**9, accumulated=2) == on_rank(STEP, 4, "zero3", 4, 10**9)


@each_row("guess", [1, 40, 2_000_000])
@each_row(
    ("size", "turns"),
    [
        (lambda number: 2.0 + 0.5 * number, 4),
        (lambda number: 2.0 + max(0.5 * number, 3.0 * number - 60), 9),
        (lambda number: 7.0 + 100.0 * (number > 17), 29),
    ],
)
def test_the_largest_number_takes_few_sizes(size, turns, guess):
    for limit in (-1.0, 2.5, 7.0, 30.25, 1e3):
        asked = list[int]()
        largest(lambda number: asked.append(number) or size(number), limit, guess, 1_000_000)  # noqa: B023 at once
        assert len(asked) <= turns
