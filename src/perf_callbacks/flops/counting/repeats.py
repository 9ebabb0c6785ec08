"""Find matrix products in the backward of a `torch.autograd.Function` that repeat a product of the forward.

Fused output heads compute their logits again to avoid storing the logits. The backward of a fused head multiplies
hidden states and weights a second time, without gradients and outside of any module.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from perf_callbacks.flops.counting.coverage import unwrapped
from perf_callbacks.flops.counting.formulas import name
from perf_callbacks.flops.counting.operands import tensors
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
"""Operations whose results are filled later, perhaps by a kernel outside of torch's dispatcher."""

_MATRIX = 2

_COMPILED = "CompiledFunctionBackward"
"""Name of the autograd node of a compiled forward."""

_Product = tuple[int, int, tuple[int, ...]]
"""Number of products in a batch, length of the sums, and both sizes of the result, the smaller first."""

_Sizes = tuple[tuple[tuple[int, ...], bool], ...]


class Repeats:
    """Tracks which storages hold gradients in a backward, and stores the sizes of the forward's products.

    A product in a backward counts as recomputed if the forward had a product of the same sizes. A product whose operand
    comes from a received gradient is never recomputed. A new tensor may reuse the address of a freed gradient, so
    `follow` also removes addresses.
    """

    def __init__(self) -> None:
        self._forward: set[_Sizes] = set()
        self._gradient_products: Counter[_Product] = Counter()  # of the forward, and not yet seen in a backward
        self._gradients: set[int] = set()  # addresses of storages

    def multiplied(self, operands: list[torch.Tensor]) -> None:
        self._forward.add(_sizes(operands))
        if (product := _product(operands)) is not None:
            batch, rows, inner, columns = product
            self._gradient_products[_key(batch, rows, columns, inner)] += 1
            self._gradient_products[_key(batch, inner, rows, columns)] += 1

    def repeated(self, operands: list[torch.Tensor]) -> bool:
        """Return True if a product in a backward was already computed in the forward.

        In the backward of compiled code, the gradients are unknown, so sizes alone decide: a product is repeated if the
        forward had its sizes, and has no gradient of these sizes left. The gradient of attention's probabilities has
        the sizes of the scores.
        """
        if type(torch._C._current_autograd_node()).__name__ == _COMPILED:  # noqa: SLF001 there is no public name
            product = _product(operands)
            if product is not None and self._gradient_products[key := _key(*product)] > 0:
                self._gradient_products[key] -= 1
                return False
            return _sizes(operands) in self._forward
        return self._receive() and _sizes(operands) in self._forward and self._gradients.isdisjoint(_storages(operands))

    def follow(self, func: Any, args: Any, out: Any) -> None:
        """Record whether the result of an operation in a backward is a gradient.

        The result is a gradient if an operand is a gradient. An empty result counts as a gradient too, because it will
        be filled later.
        """
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
        """Record the gradients that the backward of a `torch.autograd.Function` received.

        Return False if no `torch.autograd.Function` runs its backward.
        """
        if not isinstance(torch._C._current_autograd_node(), BackwardCFunction):  # noqa: SLF001 there is no public name
            return False
        frame = next((frame for frame in callers() if frame.f_code is _OWN_BACKWARD), None)
        if frame is not None:
            self._gradients.update(_storages(frame.f_locals.get("args", ())))
        return frame is not None


def _storages(values: Iterable[Any]) -> Iterator[int]:
    """Yield the storage addresses of all dense tensors among values, including tensors in lists."""
    for value in tensors(values):
        if value.layout is torch.strided and not value.is_nested:
            tensor = unwrapped(value)
            yield getattr(tensor, "_local_tensor", tensor).untyped_storage()._cdata  # noqa: SLF001 the key of a storage


def _sizes(operands: list[torch.Tensor]) -> _Sizes:
    """Return a pair for each factor of a product: the factor's sizes, and True if the factor is transposed.

    The number of rows of the first factor is left out.
    """
    matrices = [one for one in operands if not one.is_nested and one.dim() >= _MATRIX]
    return tuple(
        (tuple(one.shape)[place == 0 :], one.layout is torch.strided and one.stride(-1) > one.stride(-2))
        for place, one in enumerate(matrices)
    )


def _product(operands: list[torch.Tensor]) -> tuple[int, int, int, int] | None:
    """Return batch, rows, length of the sums and columns of a product of two matrices, or None for other operations."""
    if len(operands) < _MATRIX or any(tensor.is_nested for tensor in operands):
        return None
    first, second = [tuple(tensor.shape) for tensor in operands[-2:]]
    if not _MATRIX <= len(first) == len(second) <= _MATRIX + 1 or first[-1] != second[-2]:
        return None
    return first[0] if len(first) > _MATRIX else 1, first[-2], first[-1], second[-1]


def _key(batch: int, rows: int, inner: int, columns: int) -> _Product:
    return batch, inner, tuple(sorted((rows, columns)))
