"""Type and size of the first batch of a fit, before the batch is copied to the device."""

from collections.abc import Iterator, Mapping

import torch

from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.foreign_errors import let_pass


class FirstBatch:
    """The first batch's type, size and pinning; only if `wanted`, because `is_pinned` initializes CUDA."""

    def __init__(self, *, wanted: bool = False) -> None:
        self.wanted = wanted
        self.kind: str | None = None
        self.pinned = False
        self.bytes = 0

    def see(self, batch: object) -> None:
        """A batch of unknown form has size 0."""
        if not self.wanted:
            return
        self.wanted = False
        with guard(let_pass):  # a batch may be anything
            inside = [*tensors(batch)]
            self.pinned = bool(inside) and inside[0].is_pinned()
            self.bytes = sum([tensor.nbytes for tensor in inside])
        self.kind = type(batch).__name__


def tensors(batch: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch, an optimizer's state or a result, in the containers that torch pins."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, tuple | list):
        for value in batch:
            yield from tensors(value)
