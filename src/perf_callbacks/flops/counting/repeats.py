"""Matrix products in the backward of a `torch.autograd.Function` that repeat a product of the forward.

Fused output heads compute their logits again instead of storing them, without gradients and outside of any module.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from perf_callbacks.flops.counting.coverage import unwrapped
from perf_callbacks.flops.counting.formulas import name
from perf_callbacks.flops.counting.operands import MATRIX, tensors
from perf_callbacks.flops.counting.phases import in_backward
from perf_callbacks.kernel.process.stacks import callers

_OWN_BACKWARD = BackwardCFunction.apply.__code__

_BLANK = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::new_zeros",
    "aten::zeros",
    "aten::zeros_like",
}
"""Filled later, perhaps by a kernel outside of torch's dispatcher."""

_COMPILED = "CompiledFunctionBackward"  # Autograd node of a compiled forward

_Sizes = tuple[tuple[tuple[int, ...], bool], ...]


class Repeats:
    """Tracks storages of gradients in a backward, and the sizes of the forward's products.

    A product in a backward is recomputed if the forward had one of its sizes, unless an operand comes from a received
    gradient. A new tensor may reuse a freed gradient's address, so `follow` also removes addresses.
    """

    def __init__(self) -> None:
        self._forward: set[_Sizes] = set()
        self._gradients_to_come: Counter[_Sizes] = Counter()
        self._gradients: set[int] = set()  # addresses of storages

    def multiplied(self, operands: list[torch.Tensor]) -> None:
        self._forward.add(_sizes(operands))
        self._gradients_to_come.update(_sizes_of_gradients(operands))

    def repeated(self, operands: list[torch.Tensor]) -> bool:
        """Return True if a product in a backward was already computed in the forward.

        In compiled code, the gradients are unknown, and sizes alone decide: a product is repeated if the forward had
        its sizes and has no gradient of them left. The gradient of attention's probabilities has the sizes of the
        scores.
        """
        if type(torch._C._current_autograd_node()).__name__ == _COMPILED:  # noqa: SLF001 there is no public name
            sizes = _sizes(operands)
            if self._gradients_to_come[sizes] > 0:
                self._gradients_to_come[sizes] -= 1
                return False
            return sizes in self._forward
        return self._receive() and _sizes(operands) in self._forward and self._gradients.isdisjoint(_storages(operands))

    def follow(self, func: Any, args: Any, out: Any) -> None:
        """A result is a gradient if an operand is one, or if it is empty: it will be filled later."""
        if not in_backward():
            if self._gradients:
                self._gradients.clear()
            return
        inside = self._receive()
        if not self._gradients:  # no function with a backward of its own has run yet
            return
        if not self._gradients.isdisjoint(_storages(args)) or (inside and name(func) in _BLANK):
            self._gradients.update(_storages([out]))
        else:
            self._gradients.difference_update(_storages([out]))

    def _receive(self) -> bool:
        """Record gradients that the backward of a `torch.autograd.Function` received; False if none runs."""
        if not isinstance(torch._C._current_autograd_node(), BackwardCFunction):  # noqa: SLF001 there is no public name
            return False
        frame = next((frame for frame in callers() if frame.f_code is _OWN_BACKWARD), None)
        if frame is not None:
            self._gradients.update(_storages(frame.f_locals.get("args", ())))
        return frame is not None


def _storages(values: Iterable[Any]) -> Iterator[int]:
    for value in tensors(values):
        if value.layout is torch.strided and not value.is_nested:
            tensor = unwrapped(value)
            yield getattr(tensor, "_local_tensor", tensor).untyped_storage()._cdata  # noqa: SLF001 the key of a storage


def _sizes(operands: list[torch.Tensor]) -> _Sizes:
    """Return each factor's sizes, without the rows of the first, and True if it is transposed."""
    matrices = [operand for operand in operands if not operand.is_nested and operand.dim() >= MATRIX]
    return tuple(
        (
            tuple(operand.shape)[place == 0 :],
            operand.layout is torch.strided and operand.stride(-1) > operand.stride(-2),
        )
        for place, operand in enumerate(matrices)
    )


def _sizes_of_gradients(operands: list[torch.Tensor]) -> list[_Sizes]:
    """Return the sizes of both products in the gradient of a product of two matrices, or of two batches of matrices."""
    sizes = _sizes(operands)
    matrices = [tensor for tensor in operands if not tensor.is_nested and tensor.dim() >= MATRIX]
    if len(matrices) != MATRIX or matrices[0].dim() != matrices[1].dim() or matrices[0].dim() > MATRIX + 1:
        return []
    (rows, inner), columns = matrices[0].shape[-2:], matrices[1].shape[-1]
    batch, several = tuple(matrices[1].shape[:-2]), matrices[0].dim() > MATRIX
    (_, first_turned), (_, second_turned) = sizes
    return [
        (((rows, columns) if several else (columns,), False), ((*batch, columns, inner), not second_turned)),
        (((inner, rows) if several else (rows,), not first_turned), ((*batch, rows, columns), False)),
    ]
