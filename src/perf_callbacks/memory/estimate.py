"""The memory of a rank, the largest micro-batch that fits, and the number of layers to checkpoint."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.kernel.records.module_records import APART, ModuleWork
from perf_callbacks.kernel.units import GB

DDP, FSDP = "ddp", "fsdp"
FULL = ("zero3", FSDP)

SHARDED = {
    "none": (),
    DDP: (),
    "zero1": ("optimizer",),
    "zero2": ("optimizer", "gradients"),
    **dict.fromkeys(FULL, ("optimizer", "gradients", "weights")),
}
"""Parts of memory that each kind of sharding divides among the ranks."""

GATHERED_LAYERS = 2  # layers whose sharded weights a rank holds in full: the running and the next one


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedStep:
    """Memory of one optimizer step on one rank without sharding, in bytes."""

    parts: Memory
    passes: tuple[tuple[int, int], ...]
    """Moments of forward and backward that may be the peak: bytes of gradients, and of the step's other tensors."""
    optimizer_temporary: int  # peak of the tensors that the optimizer makes during its step
    weights: int
    gradients: int
    optimizer: int


def on_rank(
    step: SimulatedStep, ranks: int, sharding: str, layers: int, layer_bytes: int, *, accumulated: int = 1
) -> dict[str, float]:
    """Return the parts of memory on one of several ranks, and their peak, in GB.

    - ddp adds buckets as large as all gradients, as with `gradient_as_bucket_view=False`.
    - zero3 and fsdp add the full weights of two layers and gradients of one, and both of all modules outside of layers.
    - With gradient accumulation, each rank of fsdp holds all gradients until the final micro-batch (`no_sync`).
    - The buckets of zero1 and zero2 are left out: their size doesn't depend on the model.

    `layer_bytes` are those of one layer's weights, or of the whole model if `layers` is 0.
    """
    share = {part: 1 / ranks if part in SHARDED[sharding] else 1.0 for part in ("weights", "gradients", "optimizer")}
    weights, optimizer = step.weights * share["weights"], step.optimizer * share["optimizer"]
    extra = float(step.gradients) if sharding == DDP and ranks > 1 else 0.0
    reduced = 0.0
    if sharding in FULL and ranks > 1:
        outside = max(0, step.weights - layers * layer_bytes)
        extra = float(min(step.weights, outside + GATHERED_LAYERS * layer_bytes))
        reduced = step.gradients * min(1.0, (outside + layer_bytes) / max(1, step.weights))
    in_full = sharding == FSDP and accumulated > 1
    of_passes = 1.0 if in_full else share["gradients"]
    held = weights + optimizer + (extra if sharding == DDP else 0.0)
    in_passes = max([of_passes * kept + rest for kept, rest in step.passes], default=0.0)
    in_passes += reduced + (0.0 if sharding == DDP else extra)
    in_update = step.gradients * share["gradients"] + step.optimizer_temporary * share["optimizer"]
    peak = held + max(in_passes, in_update)
    if ranks == 1 or sharding == "none":
        peak = max(peak, (step.parts.peak_gb or 0.0) * GB)
    parts = {
        "weights": weights,
        "gradients": step.gradients * of_passes,
        "optimizer": optimizer,
        "activations": (step.parts.activations_gb or 0.0) * GB,
        "temporary": (step.parts.temporary_gb or 0.0) * GB,
        "exchange": extra + reduced,
        "peak": peak,
    }
    return {name: size / GB for name, size in parts.items() if size or name != "exchange"}


def largest(size: Callable[[int], float], limit: float, guess: int, most: int) -> int:
    """Return the largest number from 0 to `most` whose size, which must grow with it, is at most `limit`.

    >>> largest(lambda number: 3.0 + 2.0 * number, limit=28.0, guess=11, most=100)
    12
    """
    low, high = 0, most + 1  # `low` fits, `high` doesn't
    number, before, turns = max(1, min(guess, most)), None, 0
    while high - low > 1:
        tried = size(number)
        low, high = (number, high) if tried <= limit else (low, number)
        slope = 0.0 if before is None else (tried - before[1]) / (number - before[0])
        away = (limit - tried) / slope if slope > 0 else math.copysign(1 << turns, limit - tried)
        before, turns = (number, tried), turns + 1
        number += math.floor(max(-most, min(most, away)))
        number = max(low + 1, min(high - 1, number)) if turns <= _STRAIGHT else (low + high) // 2
    return low


_STRAIGHT = 8  # sizes after which `largest` halves the range, because the growth isn't linear


def growth_gb(parts: Memory) -> float | None:
    """Return the GB of a measured step that may grow with the micro-batch, or None if unknown.

    They include gradients, which don't grow: a larger micro-batch is estimated too high, never too low.
    """
    if parts.peak_gb is None or parts.weights_gb is None or not parts.micro_batch:
        return None
    growth = parts.peak_gb - parts.weights_gb - (parts.optimizer_gb or 0.0)
    return growth if growth > 0 else None


def headroom_gb(parts: Memory, limit_gb: float | None = None) -> float | None:
    """Return the GB besides weights and optimizer state: below the limit, else as measured, None if unknown."""
    if limit_gb is None or parts.weights_gb is None:
        return parts.headroom_gb
    return max(0.0, limit_gb - parts.weights_gb - (parts.optimizer_gb or 0.0) - (parts.context_gb or 0.0))


def fitting_micro_batch(parts: Memory, headroom: float | None) -> int | None:
    """Return the largest micro-batch that certainly fits by a measured step: 0 if none does, None if unknown.

    >>> fitting_micro_batch(Memory(step=2, device="cuda", weights_gb=2.0, peak_gb=10.0, micro_batch=8), headroom=12.5)
    12
    """
    growth, fixed = growth_gb(parts), _fixed_gb(parts)
    if growth is None or headroom is None or parts.micro_batch is None:
        return None
    if headroom >= growth:
        return int(headroom / growth * parts.micro_batch)
    return int(max(0.0, headroom - fixed) / (growth - fixed) * parts.micro_batch) if growth > fixed else 0


def _fixed_gb(parts: Memory) -> float:
    """Return the GB of gradients and temporary tensors: the most that neither micro-batch nor checkpointing changes."""
    return (parts.gradients_gb or 0.0) + (parts.temporary_gb or 0.0)


def about_micro_batch(batch: int, used: float, room: float, layers_run: int, layers: int) -> int:
    """Estimate the micro-batch that would fit, from an allocation that failed in the forward of a layer.

    All layers are assumed to use the same memory, and only layers memory that grows. `used` grows with the micro-batch;
    `room` is free, in the same unit; `layers_run` includes the layer that failed.

    >>> about_micro_batch(16, used=8.0, room=1.0, layers_run=8, layers=32)
    4
    """
    return int(batch * max(0.0, used + room) * layers_run / (layers * used)) if used > 0 else 0


class Layers(NamedTuple):
    """List of layers in a model, and what checkpointing one of them frees."""

    path: str
    number: int
    freed_gb: float


def layers_of(modules: Sequence[ModuleWork]) -> Layers | None:
    """Return the list of layers whose checkpointing would free the most memory.

    A checkpointed layer still stores its input, the previous layer's output. Its size is estimated by the activations
    of the layer itself without its submodules, or else by the largest of a submodule.
    """
    lists: dict[str, list[ModuleWork]] = {}
    for line in modules:
        before, star, _ = f"{line.path}.".partition("*.")
        if star and line.path not in APART:
            lists.setdefault(before + "*", []).append(line)
    candidates = []
    for path, lines in lists.items():
        count = next((line.modules for line in lines if line.path == path), 0)
        held = {line.path: line.activation_bytes or 0 for line in lines}
        kept = held.get(path) or max(held.values())
        if count > 1 and sum(held.values()) > kept:
            candidates.append(Layers(path, count, (sum(held.values()) - kept) / count / GB))
    return max(candidates, key=lambda candidate: candidate.number * candidate.freed_gb, default=None)


def layers_to_checkpoint(parts: Memory, headroom: float | None, layers: Layers | None, batch: int | None) -> int | None:
    """Return the layers to checkpoint so that `batch` samples fit, from the first on; None if unknown or not enough.

    The last layer is never checkpointed: its recomputation would be the new peak.
    """
    growth = growth_gb(parts)
    if growth is None or headroom is None or layers is None or not batch or not parts.micro_batch:
        return None
    times = batch / parts.micro_batch
    if headroom < _fixed_gb(parts):
        return None
    number = math.ceil((growth * times - headroom) / (layers.freed_gb * times))
    return max(0, number) if number < layers.number else None
