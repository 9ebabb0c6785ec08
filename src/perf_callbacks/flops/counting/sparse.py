"""Sparse matrices in products: only their stored values are multiplied."""

import torch


def is_sparse(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is sparse, in any layout."""
    return tensor.layout in _LAYOUTS


def values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the stored values of a sparse tensor, including zeros in blocks, or the dense tensor itself."""
    if not is_sparse(tensor):
        return tensor
    stored = tensor.detach()
    return stored._values() if stored.layout is torch.sparse_coo else stored.values()  # noqa: SLF001 also uncoalesced


def product(a: torch.Tensor, b: torch.Tensor) -> int:
    """Count a product with a sparse operand: each stored value times a row or column of the other operand.

    For two sparse matrices, each value in column i of the first is multiplied with each value in row i of the second.
    """
    if is_sparse(a) and is_sparse(b):
        return int(2 * (_numbers(a, -1) * _numbers(b, 0)).sum())
    if is_sparse(a):
        return int(2 * values(a).numel() * (b.shape[-1] if b.dim() > 1 else 1))
    return int(2 * values(b).numel() * (a.shape[-2] if a.dim() > 1 else 1))


def _numbers(matrix: torch.Tensor, dimension: int) -> torch.Tensor:
    """Count the stored values of each row (0) or column (-1)."""
    places = matrix.detach().to_sparse(layout=torch.sparse_coo)._indices()[dimension]  # noqa: SLF001 also uncoalesced
    return torch.bincount(places, minlength=matrix.shape[dimension])


_LAYOUTS = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
