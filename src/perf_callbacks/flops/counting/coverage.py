"""Coverage of a count: the share of the used weights that counted operations multiplied.

A weight that none multiplied is a sign of a kernel outside of torch's dispatcher, which the counter doesn't see.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.multiprocessing.reductions import StorageWeakRef

from perf_callbacks.flops.counting.operands import MATRIX, stored_values

_MOVES = {
    "aten::cat",
    "aten::stack",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::where",
    "aten::masked_scatter",
    "aten::scatter",
    "aten::copy_",
    "aten::embedding",
    "aten::_embedding_bag",
}
"""They combine a weight with activations, or pick its rows, without multiplying."""


class Weights:
    """Tracks which weights of the running modules are multiplied."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, int, int], _Weight] = {}
        self._of: dict[int, list[_Weight]] = {}
        self._held: list[StorageWeakRef] = []
        self._sharded = False
        self._strangers: set[tuple[int, int, int]] = set()  # multiplied tensors that may be gathered weights

    def see(self, module: nn.Module, *, runs: bool = True) -> None:
        """`nn.MultiheadAttention` uses a child's weights. With `runs=False`, only multiplied weights are covered."""
        for owner in (module, *module._modules.values()):  # noqa: SLF001 `children` drops a module that occurs twice
            if owner is None:
                continue
            for parameter in owner._parameters.values():  # noqa: SLF001 as above
                weight = None if parameter is None else unwrapped(parameter)
                if weight is not None and weight.dim() >= MATRIX:
                    shard = getattr(weight, "_local_tensor", None)
                    self._sharded = self._sharded or shard is not None
                    optional = shard is not None or isinstance(owner, nn.Embedding | nn.EmbeddingBag)
                    self._add(weight if shard is None else shard, optional=optional or not runs, runs=runs)

    def _add(self, tensor: Any, *, optional: bool, runs: bool) -> None:
        tensor = stored_values(tensor)
        storage = tensor.untyped_storage()
        start, elements = tensor.storage_offset(), tensor.numel()
        place = storage._cdata, start, elements  # noqa: SLF001 the key of a storage
        if place in self._weights or not elements:
            if elements and runs:
                self._weights[place].optional = optional
            return
        weight = self._weights[place] = _Weight(start, elements, optional=optional)
        weight.multiplied = place in self._strangers
        self._hold(storage, [weight])

    def _hold(self, storage: Any, weights: "list[_Weight]") -> None:
        """Reserve the address of a storage without keeping its memory alive."""
        self._held.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call] # torch leaves it so
        self._of.setdefault(storage._cdata, []).extend(weights)  # noqa: SLF001 as above

    def behind(self, tensor: torch.Tensor) -> "list[_Weight]":
        tensor = stored_values(tensor)
        there = self._of.get(tensor.untyped_storage()._cdata)  # noqa: SLF001 as above
        if there is None or len(there) == 1:
            return there or []
        start = tensor.storage_offset()
        end = start + tensor.numel()
        return [weight for weight in there if weight.start < end and start < weight.start + weight.elements]

    def multiplied(self, operands: Iterable[torch.Tensor]) -> bool:
        """Return True if any operand is a weight."""
        any_weight = False
        for operand in operands:
            weights = self.behind(operand)
            any_weight = any_weight or bool(weights)
            for weight in weights:
                weight.source.multiplied = True
            if self._sharded and not weights:
                self._remember(operand)
        return any_weight

    def _remember(self, operand: torch.Tensor) -> None:
        """The operand may be a gathered weight, which exists only while its module runs."""
        operand = stored_values(operand)
        storage = operand.untyped_storage()
        self._held.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call] # as below
        self._strangers.add((storage._cdata, int(operand.storage_offset()), operand.numel()))  # noqa: SLF001 as above

    def passed(self, called: str, operands: Iterable[object], out: object, *, pointwise: bool) -> None:
        """Record an uncounted operation. Made of weights alone, its result counts as the weights in a product."""
        of = self._of
        tensors = [operand for operand in operands if isinstance(operand, torch.Tensor) and operand.is_floating_point()]
        for tensor in tensors:  # most operations involve no weight, and must cost little
            if stored_values(tensor).untyped_storage()._cdata in of:  # noqa: SLF001 as above
                self._passed(called, tensors, out, pointwise=pointwise)
                return

    def _passed(self, called: str, tensors: list[torch.Tensor], out: object, *, pointwise: bool) -> None:
        behind = [self.behind(tensor) for tensor in tensors]
        if not any(behind):
            return
        moves = called in _MOVES
        if all(behind) and called != "aten::embedding":
            storage = stored_values(out).untyped_storage() if isinstance(out, torch.Tensor) else None
            if storage is not None and storage._cdata not in self._of:  # noqa: SLF001 as above
                self._hold(storage, [weight.whole() for weights in behind for weight in weights])
        elif pointwise or moves:
            for weights in behind:
                for weight in weights:
                    weight.source.mixed = True

    def coverage(self) -> float | None:
        """Return None without matrix weights."""
        judged = [weight for weight in self._weights.values() if weight.counts]
        total = sum(weight.elements for weight in judged)
        return sum(weight.elements for weight in judged if weight.multiplied) / total if total else None

    def multiplied_elements(self) -> int:
        return sum(weight.elements for weight in self._weights.values() if weight.multiplied)


def unwrapped(weight: Any) -> Any:
    """Return the tensor inside the wrappers of `torch.func.vmap` and `torch.func.grad`."""
    while is_functorch_wrapped_tensor(weight):
        weight = get_unwrapped(weight)
    return weight


class _Weight:
    """Weight, or tensor made of weights, such as a copy in another dtype."""

    def __init__(self, start: int, elements: int, *, optional: bool) -> None:
        self.start = start
        self.elements = elements
        self.source = self
        self.multiplied = False  # by a counted operation
        self.mixed = False  # combined with activations elementwise, or copied into a tensor with them
        self.optional = optional  # rows of an embedding are picked; shards may be gathered into another weight

    def whole(self) -> "_Weight":
        made = _Weight(0, 1 << 62, optional=True)
        made.source = self.source
        return made

    @property
    def counts(self) -> bool:
        """True if a product used the weight, or should have."""
        return self.multiplied or not (self.optional or self.mixed)
