"""Facts about an operation's operands, such as their dtype; complex and sparse tensors."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from perf_callbacks.flops.work import Kind
from perf_callbacks.kernel.process import device as devices

MATRIX = 2
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
_TWO_NUMBERS = getattr(torch, "float4_e2m1fn_x2", None)  # since torch 2.8
_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


def is_wrapped(types: Any) -> bool:
    return any(kind not in _PLAIN and hasattr(kind, "__tensor_flatten__") for kind in types)


def tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors(value)


def matrices(module: nn.Module) -> list[torch.Tensor]:
    """Return the module's own weights that are multiplied as matrices: an embedding has none."""
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return []
    own = module._parameters.values()  # noqa: SLF001 `parameters` drops a weight that occurs twice
    return [weight for weight in own if weight is not None and weight.dim() >= MATRIX]


def are_batched(operands: list[torch.Tensor]) -> bool:
    """Return True if at least two are batches of matrices, as in attention."""
    return sum(operand.dim() == 3 for operand in operands) > 1  # noqa: PLR2004 [batch, rows, columns]


def flops_per_real_flop(operands: list[torch.Tensor]) -> int:
    """Return a product's FLOPs relative to one of real numbers with the same shapes.

    A multiply-add of complex numbers takes four multiplications and four additions: 4 for two complex operands, 2 for
    one. 0 if all are integers. 2 for 4-bit numbers: each element holds two numbers of a row.
    """
    if operands and operands[0].dtype is _TWO_NUMBERS:
        return 2
    kinds = {operand.is_complex() for operand in operands if operand.is_complex() or operand.is_floating_point()}
    return {(): 0, (False,): 1, (True,): 4, (False, True): 2}[tuple(sorted(kinds))]


def number_format(operands: list[torch.Tensor], kind: Kind) -> str:
    """Return the dtype of the multiplied numbers, for complex ones that of their real parts."""
    operand = next(
        (candidate for candidate in operands if candidate.is_floating_point() or candidate.is_complex()), operands[0]
    )
    dtype = operand.dtype.to_real()
    single = dtype is torch.float32 and not operand.is_cpu
    if single and devices.device_at(operand.device).multiplies_in_tf32(convolution=kind == "convolution"):
        return "tfloat32"
    return str(dtype).removeprefix("torch.")


def computed_share(args: tuple[Any, ...]) -> float | None:
    """Return the share of all pairs of query and key in the blocks that flex attention computes.

    None if the blocks are on a device: reading them would wait for it. A mask that is only causal has a share of 1,
    because causal attention counts in full.
    """
    # The fields of a `BlockMask` end with the size of a block in queries, the size in keys, and a function.
    mask: Any = next(
        (argument for argument in args if isinstance(argument, tuple) and argument and callable(argument[-1])), None
    )
    queries, keys = args[0].shape[-2], args[1].shape[-2]
    if mask is None or (mask[-3] >= queries and mask[-2] >= keys):  # a single block: there is no mask
        return 1.0
    fields: list[Any] = [part for part in mask if not isinstance(part, int)]  # since torch 2.6, two lengths come first
    blocks = [part for part in fields[:3:2] if part is not None]  # blocks in which some pairs are computed, or all
    if any(isinstance(part, FakeTensor) or not part.is_cpu for part in blocks):
        return None
    computed: Any = sum(blocks)
    if queries == keys and bool((computed == torch.arange(1, computed.shape[-1] + 1)).all()):
        return 1.0
    return min(1.0, float(computed.double().mean() * mask[-2] / keys))


def is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout in _SPARSE


def stored_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sparse tensor's stored values, which may include zeros, or a dense tensor itself."""
    if not is_sparse(tensor):
        return tensor
    stored = tensor.detach()
    return stored._values() if stored.layout is torch.sparse_coo else stored.values()  # noqa: SLF001 also uncoalesced


def sparse_product(a: torch.Tensor, b: torch.Tensor) -> int:
    """Return the FLOPs of a product with a sparse operand.

    Each stored value is multiplied by a row or column of the other operand. If both are sparse, each value in column i
    of the first is multiplied by each value in row i of the second.
    """
    if is_sparse(a) and is_sparse(b):
        return int(2 * (_numbers(a, -1) * _numbers(b, 0)).sum())
    if is_sparse(a):
        return int(2 * stored_values(a).numel() * (b.shape[-1] if b.dim() > 1 else 1))
    return int(2 * stored_values(b).numel() * (a.shape[-2] if a.dim() > 1 else 1))


def _numbers(matrix: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return the stored values in each row (`dimension` 0) or column (`dimension` -1)."""
    places = matrix.detach().to_sparse(layout=torch.sparse_coo)._indices()[dimension]  # noqa: SLF001 also uncoalesced
    return torch.bincount(places, minlength=matrix.shape[dimension])
