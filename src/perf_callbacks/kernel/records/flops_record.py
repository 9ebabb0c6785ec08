"""FLOPs of a step: counts, coverage, and work that the count can't see."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from perf_callbacks.kernel.records.module_records import ModuleWork

ENOUGH_COVERED = 0.98  # a count that covers less of the weights is a lower bound


@dataclass(frozen=True, kw_only=True, slots=True)
class Flops:
    """FLOP count of one step on this rank."""

    step: int
    model_flops: int
    """Of forward and backward: the numerator of MFU."""
    hardware_flops: int
    """All executed: the numerator of HFU."""
    by_phase: Mapping[str, int]
    """forward, backward, recompute, attention_recompute, optimizer."""
    by_dtype: Mapping[str, int]
    """Model FLOPs by the number format of the operands."""
    source: str
    """"counted": in the running step. "fake-tensor copy": on a copy of the model. "closed form": from weights'
    sizes."""
    coverage: float | None
    """Share of all elements of weight matrices that counted operations have used."""
    uncounted: Mapping[str, int]
    """Calls that were not counted: of operations that may multiply matrices, without a known formula, and of modules
    that the program called outside of the forward, without gradients."""
    lower_bound: bool
    """True: the step has more FLOPs than this record says."""
    whole_step: bool = True
    """False: the count began within the step, at the first batch of a new shape."""
    compiled: bool = False
    """True: the program has compiled code, which ran compiled in the counted step too."""
    logical_flops: int | None = None
    """As if one rank held the whole tensors of operations on sharded tensors. None without sharded tensors."""
    causal_flops: int = 0
    """Fused causal attention, with masked pairs of query and key. A kernel that skips them computes about half."""
    masked_flops: int = 0
    """Part of `causal_flops` on masked pairs: only of torch's own kernels, with equal numbers of keys and queries."""
    over_six_n: float | None = None
    """Model FLOPs divided by 6 x tokens x weights; weights outside of products don't count. None without tokens."""
    products: tuple[tuple[str, str, str, int], ...] = ()
    """With the most FLOPs: operation, shapes, number format and FLOPs."""
    copies: tuple[tuple[str, str, int], ...] = ()
    """Largest copies of tensors: operation, shape and bytes."""
    reads: Mapping[str, int] = field(default_factory=dict)
    """Waits of the host to read from the device, by line of the program."""
    values_read: Mapping[str, int] = field(default_factory=dict)
    """Values that Python read from tensors, by line of the program, without lines in forward, backward or optimizer."""
    reductions: int = 0
    """Micro-batches in whose backward the ranks summed tensors, such as gradients."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """During the count, by operation."""
    modules: tuple[ModuleWork, ...] = ()
    """At most 40 entries, the largest first and `OTHERS` last, that sum to the step. Empty: not counted by module."""
