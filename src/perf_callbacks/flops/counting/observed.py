"""Uncounted operations of a counted step, and operations that may make a step slow."""

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
from perf_callbacks.flops.counting.phases import in_backward
from perf_callbacks.kernel.batches.reader import Lookup
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.stacks import callers

LARGE_BYTES = 1 << 20  # of a copy that is recorded

MOST = 100  # entries for each kind of observation

_PRODUCT = re.compile(
    r"mm(?![a-z])|matmul|conv(?!ert)|linear|attention|transformer|rnn|lstm|gru|cdist|euclidean_dist|dot|einsum|outer"
    r"|gemm|fft|linalg|linear_combination|solve|cholesky|ormqr|geqrf|householder|(?<![a-z])(addmv|addr|mv|ger)(?![a-z])"
)
"""Names of operations that may multiply matrices."""

_NO_PRODUCT = re.compile(
    r"upsample_|_thnn_(fused|differentiable)_|flatten_weight|linalg_(vector_norm|cross|check_errors)"
    r"|fft_r?fftfreq|cufft_.*_plan_cache|reorder_conv|prepack(?!ed)|_pack_gemm_|quantize_weight"
)
"""Names that match `_PRODUCT` although they multiply none."""

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
"""Namespaces that multiply no matrices, unless a name matches `_PRODUCT`."""

_COPIES = {"aten::clone", "aten::_to_copy", "aten::copy_", "aten::cat"}

_READS = {"aten::_to_copy", "aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2", "aten::masked_select"}

_REDUCES = "c10d::allreduce_"  # DDP sums gradients over all ranks with it during a backward

_LOOKUPS = {"aten::embedding", "aten::_embedding_bag", "aten::_embedding_bag_forward_only"}

MOST_LOOKUPS = 4096


class OperationFacts(NamedTuple):
    """Facts about an operation, the same for all its calls."""

    operation: Any  # kept alive, so that its `id` stays unique
    called: str
    formula: Formula | None
    opaque: bool
    pointwise: bool
    causal: tuple[int, str, bool] | None  # position, name and default of the argument for a causal mask
    view: bool  # it neither computes nor stores anything: its results are views of its operands


class StepObservations:
    """Collects a limited number of observations in a counted step."""

    def __init__(self) -> None:
        self.unknown: Counter[str] = Counter()  # calls of each uncounted operation that may multiply matrices
        self.products: Counter[tuple[str, str, str]] = Counter()  # FLOPs by operation, shapes and dtype
        self.causal_flops = 0  # of fused attention with a causal mask
        self.masked_flops = 0  # part of `causal_flops` that torch's own kernels spend on masked pairs of query and key
        self.copies: Counter[tuple[str, str]] = Counter()  # bytes of large copies, by operation and shape
        self.reads: Counter[str] = Counter()  # how often the host waited for data from the device, by source line
        self.values_read: Counter[str] = Counter()
        """Values that Python read from tensors outside of training work, by source line."""
        self.lookups: set[Lookup] = set()  # in embedding tables
        self.reductions: set[int] = set()  # passes whose backward summed tensors over ranks
        self._sorts: dict[int, OperationFacts] = {}

    def sort(self, func: Any) -> OperationFacts:
        sort = self._sorts.get(id(func))
        if sort is None:
            called = name(func)
            sort = self._sorts[id(func)] = OperationFacts(
                func,
                called,
                formula(func),
                opaque=_opaque(func, called),
                pointwise=isinstance(func, OpOverload) and torch.Tag.pointwise in func.tags,
                causal=_causal_argument(func),
                view=_views(func),
            )
        return sort

    def product(self, func: Any, call: tuple[Any, Any], operands: list[torch.Tensor], dtype: str, flops: int) -> None:
        sort = self.sort(func)
        if not flops and sort.called.startswith("flex_attention"):
            self._note(self.unknown, f"{sort.called} with a block mask on a device", 1)
        if sort.causal is not None and _causal(sort.causal, *call):
            self.causal_flops += flops
            self.masked_flops += _masked(sort.called, operands, flops)
        shapes = " x ".join([_shape(operand) for operand in operands if operand.dim() > 1])
        self._note(self.products, (sort.called, shapes, dtype), flops)

    def failed(self, func: Any) -> None:
        self._note(self.unknown, str(func), 1)

    def uncounted(self, func: Any, args: Any, out: Any, weights: Weights, number: int) -> None:
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
        """Record that Python reads a value, as by `.item()`, outside of installed packages."""
        line = _line()
        if "site-packages" not in line:
            self._note(self.values_read, line, 1)

    def _copied(self, called: str, out: Any) -> None:
        if isinstance(out, torch.Tensor) and out.numel() * out.element_size() >= LARGE_BYTES:
            self._note(self.copies, (called, _shape(out)), out.numel() * out.element_size())

    def _read(self, called: str, args: Any, out: Any) -> None:
        source = args[0] if args else None
        if not isinstance(source, torch.Tensor) or source.device.type in {"cpu", "meta"}:
            return
        copied = isinstance(out, torch.Tensor) and out.device.type == "cpu"
        if copied or called != "aten::_to_copy":
            self._note(self.reads, _line(), 1)

    def _looked_up(self, table: torch.Tensor, indices: torch.Tensor) -> None:
        """Tensors without storage are left out."""
        if isinstance(indices, FakeTensor):  # torch warns if their address is asked for
            return
        with suppress(RuntimeError):
            self.lookups.add(Lookup(table.data_ptr(), int(table.shape[0]), indices.data_ptr(), indices.numel()))

    @staticmethod
    def _note(counter: "Counter[Any]", key: Any, amount: int) -> None:
        if key in counter or len(counter) < MOST:
            counter[key] += amount


def _opaque(func: Any, called: str) -> bool:
    """Return True if an operation without a formula may multiply matrices, or its package is unknown."""
    if isinstance(func, HigherOrderOperator):
        return True
    namespace, _, base = called.partition("::")
    return namespace not in _TRANSPARENT or (_PRODUCT.search(base) is not None and _NO_PRODUCT.search(base) is None)


def _views(func: Any) -> bool:
    returns = getattr(getattr(func, "_schema", None), "returns", ())
    return bool(returns) and all([given.alias_info and not given.alias_info.is_write for given in returns])


def _causal_argument(func: Any) -> tuple[int, str, bool] | None:
    if "attention" in str(func):
        for place, argument in enumerate(getattr(getattr(func, "_schema", None), "arguments", ())):
            if argument.name in {"is_causal", "causal"}:
                return place, argument.name, bool(argument.default_value)
    return None


def _causal(argument: tuple[int, str, bool], args: Any, kwargs: Any) -> bool:
    place, called, default = argument
    return bool(args[place] if place < len(args) else kwargs.get(called, default))


def _masked(called: str, operands: list[torch.Tensor], flops: int) -> int:
    """Return the FLOPs of pairs that a causal mask hides: query i attends to keys 1 to i.

    0 if there are not as many keys as queries, because kernels disagree about the place of the mask, and for other
    packages than torch, whose operations may work on several packed sequences.
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
    for frame in callers():
        path = frame.f_code.co_filename
        if not path.startswith(_PACKAGES):
            return f"{path.replace(os.sep, '/')}:{frame.f_lineno}"
    return "somewhere in torch"


_PACKAGES = tuple(str(Path(file).parents[level]) + os.sep for file, level in ((torch.__file__, 0), (__file__, 2)))
"""In full, because a user's directory may be called torch too."""
