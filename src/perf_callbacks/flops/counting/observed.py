"""Other observations in the counted step: uncounted operations, and operations that make a step slow."""

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from perf_callbacks.flops.counting.coverage import Weights
from perf_callbacks.flops.counting.formulas import Formula, formula, name
from perf_callbacks.flops.counting.phases import callers, in_backward
from perf_callbacks.kernel.batches.reader import Lookup
from perf_callbacks.kernel.foreign_errors import suppress

LARGE_BYTES = 1 << 20
"""Fewest bytes of a copy that is reported."""

MOST = 100
"""Most entries of each kind."""

_PRODUCT = re.compile(
    r"mm(?![a-z])|matmul|conv(?!ert)|linear|attention|transformer|rnn|lstm|gru|cdist|euclidean_dist|dot|einsum|outer"
    r"|gemm|fft|linalg|linear_combination|solve|cholesky|ormqr|geqrf|householder|(?<![a-z])(addmv|addr|mv|ger)(?![a-z])"
)
"""Names of operations that may multiply matrices."""

_NO_PRODUCT = re.compile(
    r"upsample_|_thnn_(fused|differentiable)_|flatten_weight|linalg_(vector_norm|cross|check_errors)"
    r"|fft_r?fftfreq|cufft_.*_plan_cache|reorder_conv|prepack(?!ed)|_pack_gemm_|quantize_weight"
)
"""Names that look like products but interpolate, work elementwise, or reorder weights."""

_TRANSPARENT = {
    "aten",
    "prim",
    "prims",
    "rngprims",
    "debugprims",
    "profiler",
    "c10d",
    "c10d_functional",
    "_c10d_functional",
    "_c10d_functional_autograd",
    "_dtensor",
    "fsdp",
    "symm_mem",
    "streams",
    "torchvision",
}
"""Namespaces whose operations multiply nothing, unless their names look like products."""

_COPIES = {"aten::clone", "aten::_to_copy", "aten::copy_", "aten::cat"}

_READS = {"aten::_to_copy", "aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2", "aten::masked_select"}
"""Operations that may make the host wait for a device."""

_REDUCES = "c10d::allreduce_"
"""Operation by which DDP sums gradients over ranks, during a backward."""

_LOOKUPS = {"aten::embedding", "aten::_embedding_bag", "aten::_embedding_bag_forward_only"}

MOST_LOOKUPS = 4096


class Sort(NamedTuple):
    """Facts about an operation, looked up once for all calls."""

    operation: Any
    """The operation, kept alive so that no other operation gets the same id."""
    called: str
    formula: Formula | None
    opaque: bool
    pointwise: bool
    causal: tuple[int, str, bool] | None
    """Argument for a causal mask: its position, name and default."""

    @classmethod
    def of(cls, operation: Any) -> "Sort":
        """Look up an operation."""
        called = name(operation)
        return cls(
            operation,
            called,
            formula(operation),
            opaque=_opaque(operation, called),
            pointwise=isinstance(operation, OpOverload) and torch.Tag.pointwise in operation.tags,
            causal=_causal_argument(operation),
        )


class Observed:
    """Observations in a counted step, bounded in number."""

    def __init__(self) -> None:
        self.unknown: Counter[str] = Counter()
        """Number of calls of uncounted operations that may multiply matrices, by name."""
        self.products: Counter[tuple[str, str, str]] = Counter()
        """FLOPs by operation, shapes and number format."""
        self.causal_flops = 0
        """FLOPs of fused attention with a causal mask."""
        self.masked_flops = 0
        """Part of `causal_flops` on masked pairs of query and key, in torch's own kernels."""
        self.copies: Counter[tuple[str, str]] = Counter()
        """Bytes by operation and shape."""
        self.reads: Counter[str] = Counter()
        """Number of times that the host waited to read from the device, by line of the program."""
        self.values_read: Counter[str] = Counter()
        """Number of values that Python read from tensors outside of training work, by line."""
        self.lookups: set[Lookup] = set()
        """Embeddings that were looked up."""
        self.reductions: set[int] = set()
        """Numbers of the passes whose backward summed tensors over ranks."""
        self._sorts: dict[int, Sort] = {}

    def sort(self, func: Any) -> Sort:
        """Return the facts about an operation."""
        sort = self._sorts.get(id(func))
        if sort is None:
            sort = self._sorts[id(func)] = Sort.of(func)
        return sort

    def product(self, func: Any, call: tuple[Any, Any], operands: list[torch.Tensor], dtype: str, flops: int) -> None:
        """Record a counted operation."""
        sort = self.sort(func)
        if sort.causal is not None and _causal(sort.causal, *call):
            self.causal_flops += flops
            self.masked_flops += _masked(sort.called, operands, flops)
        shapes = " x ".join([_shape(operand) for operand in operands if operand.dim() > 1])
        self._note(self.products, (sort.called, shapes, dtype), flops)

    def failed(self, func: Any) -> None:
        """Record an operation whose formula failed."""
        self._note(self.unknown, str(func), 1)

    def uncounted(self, func: Any, args: Any, out: Any, weights: Weights, number: int = 1) -> None:
        """Record an operation that was not counted, in the pass with this number."""
        sort = self.sort(func)
        if sort.opaque:
            self._note(self.unknown, sort.called, 1)
            return
        if args:
            first = args[0]
            operands = first if isinstance(first, list | tuple) else args
            weights.passed(sort.called, operands, out, pointwise=sort.pointwise)
        if sort.called in _COPIES:
            self._copied(sort.called, out)
        if sort.called in _READS:
            self._read(sort.called, args, out)
        if sort.called == _REDUCES and in_backward():
            self.reductions.add(number)
        if sort.called in _LOOKUPS and len(self.lookups) < MOST_LOOKUPS:
            self._looked_up(*args[:2])

    def value_read(self) -> None:
        """Record that Python reads a value from a tensor, as by `.item()`, except in installed packages."""
        line = _line()
        if "site-packages" not in line:
            self._note(self.values_read, line, 1)

    def _copied(self, called: str, out: Any) -> None:
        if isinstance(out, torch.Tensor) and out.numel() * out.element_size() >= LARGE_BYTES:
            self._note(self.copies, (called, _shape(out)), out.numel() * out.element_size())

    def _read(self, called: str, args: Any, out: Any) -> None:
        """Record a read that the host waits for: a number, a size that depends on values, a blocking copy."""
        source = args[0] if args else None
        if not isinstance(source, torch.Tensor) or source.device.type in {"cpu", "meta"}:
            return
        copied = isinstance(out, torch.Tensor) and out.device.type == "cpu"
        if copied or called != "aten::_to_copy":
            self._note(self.reads, _line(), 1)

    def _looked_up(self, table: torch.Tensor, indices: torch.Tensor) -> None:
        """Record the tensor that indexed an embedding. Tensors without storage are left out."""
        if isinstance(indices, FakeTensor):  # torch warns if their address is asked for
            return
        with suppress(RuntimeError):
            self.lookups.add(Lookup(table.data_ptr(), int(table.shape[0]), indices.data_ptr(), indices.numel()))

    @staticmethod
    def _note(counter: "Counter[Any]", key: Any, amount: int) -> None:
        if key in counter or len(counter) < MOST:
            counter[key] += amount


def _opaque(func: Any, called: str) -> bool:
    """Return True if an operation without a formula may multiply matrices. Any operation of another package may."""
    if isinstance(func, HigherOrderOperator):
        return True
    namespace, _, base = called.partition("::")
    return namespace not in _TRANSPARENT or (_PRODUCT.search(base) is not None and _NO_PRODUCT.search(base) is None)


def _causal_argument(func: Any) -> tuple[int, str, bool] | None:
    if "attention" in str(func):
        for place, argument in enumerate(getattr(getattr(func, "_schema", None), "arguments", ())):
            if argument.name in {"is_causal", "causal"}:
                return place, argument.name, bool(argument.default_value)
    return None


def _causal(argument: tuple[int, str, bool], args: Any, kwargs: Any) -> bool:
    """Return True if an operation was called with a causal mask."""
    place, called, default = argument
    return bool(args[place] if place < len(args) else kwargs.get(called, default))


def _masked(called: str, operands: list[torch.Tensor], flops: int) -> int:
    """Return the FLOPs of the pairs that a causal mask hides: query i of n attends to keys 1 to i.

    Return 0 if the number of keys differs from the number of queries, because kernels align such masks differently.
    Return 0 for packages other than torch too, because their rows may be packed.
    """
    query, key = operands[1:3] if called.endswith("_backward") else operands[:2]
    if not called.startswith("aten::_scaled_dot_product_") or query.is_nested or query.shape[-2] != key.shape[-2]:
        return 0
    length = int(query.shape[-2])
    return flops * (length - 1) // (2 * length)


def _shape(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "[nested]"
    return "[" + ", ".join([str(int(size)) for size in tensor.shape]) + "]"


def _line() -> str:
    """Return the line of user code that called the operation."""
    for frame in callers():
        path = frame.f_code.co_filename
        if not path.startswith(_PACKAGES):
            return f"{path.replace(os.sep, '/')}:{frame.f_lineno}"
    return "somewhere in torch"


_PACKAGES = tuple(str(Path(file).parents[level]) + os.sep for file, level in ((torch.__file__, 0), (__file__, 2)))
"""Directories of torch and of this package. Full paths, because a user's directory may be called torch too."""
