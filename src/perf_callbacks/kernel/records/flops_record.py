"""Record of the FLOPs of a step: counts, coverage, and work that the count can't see."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from perf_callbacks.kernel.records.module_records import ModuleWork


@dataclass(frozen=True, kw_only=True, slots=True)
class Flops:
    """FLOP count of one step on this rank."""

    step: int
    model_flops: int
    """FLOPs of forward and backward: the numerator of MFU."""
    hardware_flops: int
    """All executed FLOPs: the numerator of HFU."""
    by_phase: Mapping[str, int]
    """FLOPs by phase: forward, backward, recompute, attention_recompute, optimizer."""
    by_dtype: Mapping[str, int]
    """Model FLOPs by the number format of the operands."""
    source: str
    """"counted": in the step as it ran. "fake-tensor copy": on a copy of the model with fake tensors. "closed form":
    from the sizes of the weights."""
    coverage: float | None
    """Share of the elements of all matrix weights that counted operations multiplied."""
    uncounted: Mapping[str, int]
    """Number of calls that were not counted, by name. The names are those of operations that may multiply matrices but
    have no formula, and of modules that ran without gradients outside of the forward."""
    lower_bound: bool
    """True: the step has more FLOPs than counted."""
    whole_step: bool = True
    """False: the count began within the step, at the first batch of a new shape."""
    compiled: bool = False
    """True: a compiled model or optimizer ran eagerly for the count."""
    logical_flops: int | None = None
    """FLOPs of operations on sharded tensors, as if one rank held the whole tensors. None without sharded tensors."""
    causal_flops: int = 0
    """FLOPs of fused attention with a causal mask, including masked pairs of query and key. A kernel that skips masked
    pairs computes about half."""
    masked_flops: int = 0
    """Part of `causal_flops` on masked pairs. Only torch's own kernels with as many keys as queries are included."""
    over_six_n: float | None = None
    """Model FLOPs divided by 6 x tokens x multiplied weights. None without tokens."""
    products: tuple[tuple[str, str, str, int], ...] = ()
    """Heaviest products: operation, shapes, number format, FLOPs."""
    copies: tuple[tuple[str, str, int], ...] = ()
    """Largest copies: operation, shape, bytes."""
    reads: Mapping[str, int] = field(default_factory=dict)
    """Number of times that the host waited to read from the device, by line of the program."""
    values_read: Mapping[str, int] = field(default_factory=dict)
    """Number of values that Python read from tensors outside of forward, backward and optimizer, by line."""
    reductions: int = 0
    """Number of micro-batches whose backward summed tensors over ranks, such as DDP's gradients."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Errors in counting, by operation."""
    modules: tuple[ModuleWork, ...] = ()
    """Work by module, the heaviest first, at most 40 lines. The FLOPs of all lines sum to the FLOPs above. Empty: not
    counted by module, or an older version wrote the journal."""
