"""Which of the weights that were at work were multiplied in an operation that was counted.

A kernel that goes past torch's dispatcher leaves no other trace than a weight that nobody was seen to multiply.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.multiprocessing.reductions import StorageWeakRef

_MATRIX = 2
"""Weights of fewer dimensions are not multiplied as matrices."""

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
"""Operations that put a weight among activations, or that pick rows of it, and multiply nothing."""


class Weights:
    """The weights of the modules that run, and what became of them."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, int, int], _Weight] = {}
        self._of: dict[int, list[_Weight]] = {}
        self._held: list[StorageWeakRef] = []
        self._sharded = False
        self._strangers: set[tuple[int, int, int]] = set()  # multiplied, and maybe a weight that was gathered for it

    def see(self, module: nn.Module) -> None:
        """A module runs: with its own weights, or with those of a child, as `nn.MultiheadAttention` does."""
        for owner in (module, *module._modules.values()):  # noqa: SLF001 `children` drops a module that stands twice
            if owner is None:
                continue
            for parameter in owner._parameters.values():  # noqa: SLF001 as above
                weight = None if parameter is None else _unwrapped(parameter)
                if weight is not None and weight.dim() >= _MATRIX:
                    shard = getattr(weight, "_local_tensor", None)
                    self._sharded = self._sharded or shard is not None
                    optional = shard is not None or isinstance(owner, nn.Embedding | nn.EmbeddingBag)
                    self._add(weight if shard is None else shard, optional=optional)

    def _add(self, tensor: Any, *, optional: bool) -> None:
        storage = tensor.untyped_storage()
        start, elements = tensor.storage_offset(), tensor.numel()
        place = storage._cdata, start, elements  # noqa: SLF001 what a storage is known by
        if place in self._weights or not elements:
            return
        weight = self._weights[place] = _Weight(start, elements, optional=optional)
        weight.multiplied = place in self._strangers
        self._hold(storage, [weight])

    def _hold(self, storage: Any, weights: "list[_Weight]") -> None:
        """Keep the place of a storage from being given to another one, without keeping its memory."""
        self._held.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call] # torch leaves it so
        self._of.setdefault(storage._cdata, []).extend(weights)  # noqa: SLF001 as above

    def behind(self, tensor: torch.Tensor) -> "list[_Weight]":
        """The weights that a tensor is, is a view of, or was made of."""
        there = self._of.get(tensor.untyped_storage()._cdata)  # noqa: SLF001 as above
        if there is None or len(there) == 1:
            return there or []
        start = tensor.storage_offset()
        end = start + tensor.numel()
        return [weight for weight in there if weight.start < end and start < weight.start + weight.elements]

    def multiplied(self, operands: Iterable[torch.Tensor]) -> bool:
        """A counted operation took these; whether one of them is a weight."""
        found = False
        for operand in operands:
            weights = self.behind(operand)
            found = found or bool(weights)
            for weight in weights:
                weight.source.multiplied = True
            if self._sharded and not weights:
                self._remember(operand)
        return found

    def _remember(self, operand: torch.Tensor) -> None:
        """A module that is sharded as a whole has its weights only while it runs: they are seen when it has."""
        storage = operand.untyped_storage()
        self._held.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call] # as below
        self._strangers.add((storage._cdata, int(operand.storage_offset()), operand.numel()))  # noqa: SLF001 as above

    def passed(self, called: str, operands: Iterable[object], out: object, *, pointwise: bool) -> None:
        """An operation that is not counted took these. Made of nothing but weights, its result stands for them."""
        of = self._of
        tensors = [one for one in operands if isinstance(one, torch.Tensor) and one.is_floating_point()]
        for tensor in tensors:  # most have nothing to do with weights, and are to cost little
            if tensor.untyped_storage()._cdata in of:  # noqa: SLF001 as above
                self._passed(called, tensors, out, pointwise=pointwise)
                return

    def _passed(self, called: str, tensors: list[torch.Tensor], out: object, *, pointwise: bool) -> None:
        behind = [self.behind(tensor) for tensor in tensors]
        if not any(behind):
            return
        moves = called in _MOVES
        if all(behind) and called != "aten::embedding":
            if isinstance(out, torch.Tensor) and out.untyped_storage()._cdata not in self._of:  # noqa: SLF001 as above
                self._hold(out.untyped_storage(), [weight.whole() for weights in behind for weight in weights])
        elif pointwise or moves:
            for weights in behind:
                for weight in weights:
                    weight.source.mixed = True

    def elements(self) -> int:
        """Of all of them."""
        return sum(weight.elements for weight in self._weights.values())

    def coverage(self) -> float | None:
        """Of the elements of weights that should have been multiplied, the share that was. None: there are none."""
        judged = [weight for weight in self._weights.values() if weight.counts]
        total = sum(weight.elements for weight in judged)
        return sum(weight.elements for weight in judged if weight.multiplied) / total if total else None

    def multiplied_elements(self) -> int:
        """Of the weights that were multiplied."""
        return sum(weight.elements for weight in self._weights.values() if weight.multiplied)


def _unwrapped(weight: Any) -> Any:
    """The tensor behind those of `torch.func.vmap` and `grad`, which have no storage."""
    while is_functorch_wrapped_tensor(weight):
        weight = get_unwrapped(weight)
    return weight


class _Weight:
    """A weight, or what was made of weights: a copy in another number format is as good as the weight."""

    def __init__(self, start: int, elements: int, *, optional: bool) -> None:
        self.start = start
        self.elements = elements
        self.source = self
        self.multiplied = False
        """Whether a counted operation took it."""
        self.mixed = False
        """Whether it was combined with activations element by element, or put among them."""
        self._optional = optional  # rows of an embedding are picked; what is sharded is maybe gathered into another one

    def whole(self) -> "_Weight":
        """The same, for a storage that is made of nothing else."""
        made = _Weight(0, 1 << 62, optional=True)
        made.source = self.source
        return made

    @property
    def counts(self) -> bool:
        """Whether it is one that should be multiplied as a matrix."""
        return self.multiplied or not (self._optional or self.mixed)
