"""Estimates of memory: shares of a rank, the largest micro-batch that fits, layers to checkpoint. Arithmetic alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.kernel.records.module_records import APART, ModuleWork
from perf_callbacks.memory.use import GB

DDP, FSDP = "ddp", "fsdp"
FULL = ("zero3", FSDP)

SHARDED = {
    "none": (),
    DDP: (),
    "zero1": ("optimizer",),
    "zero2": ("optimizer", "gradients"),
    **dict.fromkeys(FULL, ("optimizer", "gradients", "weights")),
}
"""Parts of memory of which each rank holds its share only, by the kind of sharding."""

GATHERED_LAYERS = 2
"""Layers whose weights a rank holds in full with sharded weights: the layer that runs, and the next layer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedStep:
    """Memory of one step on one rank without sharding, in bytes."""

    parts: Memory
    """The parts as in a measured step."""
    passes: tuple[tuple[int, int], ...]
    """Moments of forward and backward: bytes of gradients, and bytes of all other tensors that the step made. Other
    moments have less of both."""
    optimizer_temporary: int
    """Largest sum of the tensors that the optimizer makes and frees."""
    weights: int
    gradients: int
    optimizer: int


def on_rank(
    step: SimulatedStep, ranks: int, sharding: str, layers: int, layer_bytes: int, *, accumulated: int = 1
) -> dict[str, float]:
    """Return the parts and the peak of a rank in GB, by formulas for what sharding divides and adds.

    - ddp adds buckets as large as the gradients (`gradient_as_bucket_view=False`).
    - zero3 and fsdp add gathered weights: the weights outside of the list of layers, and of two layers. Both also add
      the unsharded gradients of the weights outside of the list, and of one layer. If fsdp accumulates, ranks exchange
      gradients in the last micro-batch only (`no_sync`), and until then each rank holds all gradients.
    - Buckets of zero1 and zero2 have a size of their own, and are left out.

    Args:
        step: The step on one rank.
        ranks: Number of ranks that share.
        sharding: A name in `SHARDED`.
        layers: Number of layers in the model's list of layers; 0 without such a list.
        layer_bytes: Bytes of the weights of a layer; without such a list, of the model.
        accumulated: Number of micro-batches.
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
    found = {
        "weights": weights,
        "gradients": step.gradients * of_passes,
        "optimizer": optimizer,
        "activations": (step.parts.activations_gb or 0.0) * GB,
        "temporary": (step.parts.temporary_gb or 0.0) * GB,
        "exchange": extra + reduced,
        "peak": peak,
    }
    return {name: size / GB for name, size in found.items() if size or name != "exchange"}


def largest(fits: Callable[[int], bool], guess: int, most: int) -> int:
    """Return the largest number from 0 to `most` that fits. If a number fits, so do all smaller numbers.

    >>> largest(lambda number: number <= 12, guess=11, most=100)
    12
    """
    low, high = 0, most + 1  # `low` fits, `high` doesn't
    number, stride = max(1, min(guess, most)), 1
    while high - low > 1:
        if fits(number):
            low, number = number, number + stride
        else:
            high, number = number, number - stride
        stride *= 2
        if not low < number < high:
            number = (low + high) // 2
    return low


def growth_gb(parts: Memory) -> float | None:
    """Return the memory of a measured step that may grow with its micro-batch, in GB. None: unknown.

    This is the peak without weights and optimizer state. The peak may also contain gradients, which don't grow. So for
    a larger micro-batch the estimate may be too high, but never too low.
    """
    if parts.peak_gb is None or parts.weights_gb is None or not parts.micro_batch:
        return None
    growth = parts.peak_gb - parts.weights_gb - (parts.optimizer_gb or 0.0)
    return growth if growth > 0 else None


def headroom_gb(parts: Memory, limit_gb: float | None = None) -> float | None:
    """Return the memory that a step may use beyond weights and optimizer state: measured, or below a limit.

    None: unknown.
    """
    if limit_gb is None or parts.weights_gb is None:
        return parts.headroom_gb
    return max(0.0, limit_gb - parts.weights_gb - (parts.optimizer_gb or 0.0) - (parts.context_gb or 0.0))


def fitting_micro_batch(parts: Memory, headroom: float | None) -> int | None:
    """Return the largest micro-batch that certainly fits, by a measured step. 0: none fits. None: unknown.

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
    """Return an upper bound of the part of `growth_gb` that a smaller micro-batch or checkpointing doesn't free.

    The bound is the sum of the gradients and the temporary tensors, such as the optimizer's.
    """
    return (parts.gradients_gb or 0.0) + (parts.temporary_gb or 0.0)


def about_micro_batch(batch: int, used: float, room: float, layers_run: int, layers: int) -> int:
    """Estimate the micro-batch that would have fitted if the forward failed in one of its layers.

    The estimate assumes that layers are alike, and hold all memory that grows with the micro-batch.

    Args:
        batch: Samples of the micro-batch that failed.
        used: Memory in use that grows with the micro-batch.
        room: Memory left, in the same unit.
        layers_run: Number of layers that had run, including the layer that failed.
        layers: Number of all layers.

    >>> about_micro_batch(16, used=8.0, room=1.0, layers_run=8, layers=32)
    4
    """
    return int(batch * max(0.0, used + room) * layers_run / (layers * used)) if used > 0 else 0


class Layers(NamedTuple):
    """List of layers in a model, and the activations that checkpointing of one layer frees."""

    path: str
    number: int
    freed_gb: float


def layers_of(modules: Sequence[ModuleWork]) -> Layers | None:
    """Find the list of layers with most activations in a counted step. None: no list, or its activations are unknown.

    A checkpointed layer keeps its input, which is the output of the layer before. The input counts as the activations
    that a layer's own forward made or, without such activations, as the largest activations of one of its modules.
    """
    lists: dict[str, list[ModuleWork]] = {}
    for line in modules:
        before, star, _ = f"{line.path}.".partition("*.")
        if star and line.path not in APART:
            lists.setdefault(before + "*", []).append(line)
    found = []
    for path, lines in lists.items():
        count = next((line.modules for line in lines if line.path == path), 0)
        held = {line.path: line.activation_bytes or 0 for line in lines}
        kept = held.get(path) or max(held.values())
        if count > 1 and sum(held.values()) > kept:
            found.append(Layers(path, count, (sum(held.values()) - kept) / count / GB))
    return max(found, key=lambda one: one.number * one.freed_gb, default=None)


def layers_to_checkpoint(parts: Memory, headroom: float | None, layers: Layers | None, batch: int | None) -> int | None:
    """Return the number of layers to checkpoint, so that a micro-batch fits. None: unknown, or impossible.

    The first layers are checkpointed. The last layer is not, because its recomputation would be the new peak.
    """
    growth = growth_gb(parts)
    if growth is None or headroom is None or layers is None or not batch or not parts.micro_batch:
        return None
    times = batch / parts.micro_batch
    if headroom < _fixed_gb(parts):
        return None
    number = math.ceil((growth * times - headroom) / (layers.freed_gb * times))
    return max(0, number) if number < layers.number else None
