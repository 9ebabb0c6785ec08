"""Journal record with the FLOPs of a step: counts, coverage, and work that the count can't see."""

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
    """Origin of the FLOPs. "counted": operations were counted while the step ran. "fake-tensor copy": operations were
    counted on a copy of the model with fake tensors. "closed form": FLOPs were computed from the sizes of the weights.
    """
    coverage: float | None
    """Share of all elements of weight matrices that counted operations have used."""
    uncounted: Mapping[str, int]
    """Number of calls that were not counted, for each operation or module. An operation is uncounted if it may multiply
    matrices, and no formula for its FLOPs is known. A module is uncounted if the program called the module outside of
    the forward, without gradients."""
    lower_bound: bool
    """True: the step has more FLOPs than this record says."""
    whole_step: bool = True
    """False: the count began within the step, at the first batch of a new shape."""
    compiled: bool = False
    """True: the program has compiled code, which ran compiled in the counted step too."""
    logical_flops: int | None = None
    """FLOPs of operations on sharded tensors, as if one rank held the whole tensors. None without sharded tensors."""
    causal_flops: int = 0
    """FLOPs of fused attention with a causal mask, including masked pairs of query and key. A kernel that skips masked
    pairs computes about half."""
    masked_flops: int = 0
    """Part of `causal_flops` that is spent on masked pairs. Only torch's own attention kernels count, and only with
    equal numbers of keys and queries."""
    over_six_n: float | None = None
    """Model FLOPs divided by 6 x tokens x weights. Weights outside of products don't count. None without tokens."""
    products: tuple[tuple[str, str, str, int], ...] = ()
    """Matrix products with the most FLOPs. Each entry holds operation, shapes, number format and FLOPs."""
    copies: tuple[tuple[str, str, int], ...] = ()
    """Largest copies of tensors. Each entry holds operation, shape and number of bytes."""
    reads: Mapping[str, int] = field(default_factory=dict)
    """Number of times that the host waited to read from the device, for each line of the program."""
    values_read: Mapping[str, int] = field(default_factory=dict)
    """Number of values that Python read from tensors, for each line of the program. Lines that ran in the forward, the
    backward or the optimizer are left out."""
    reductions: int = 0
    """Number of micro-batches in whose backward the ranks summed tensors, such as gradients."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Number of errors during the count, by operation."""
    modules: tuple[ModuleWork, ...] = ()
    """Work of each module, in at most 40 entries. Entries with more FLOPs come first, and `OTHERS` comes last. The
    FLOPs of all entries sum to the FLOPs of the step. Empty if the work was not counted by module."""
