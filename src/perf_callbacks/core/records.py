"""What a run leaves behind, as frozen records.

`perf_callbacks.core.codec` writes them as lines of a journal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
"""Version of the journal. It grows when a key changes its meaning or goes away."""

APPLIED = "applied"
"""How an item of the checklist stands that is done."""

TRIED = "on trial"
"""How an item stands of which it isn't known yet what it buys."""

SCHEDULED, STARTUP = "schedule", "startup"
"""Why the checklist made a collection."""

Number = int | float


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Opens each fit and each attempt. `t` counts from here."""

    run_id: str
    """New for each fit, kept by a resumed one."""
    attempt: int
    """1 for the first start, one more for each resume."""
    step: int
    """Optimizer steps done before this attempt."""
    rank: int
    world_size: int
    device: str
    """What was measured on, such as "cpu" or "NVIDIA H200"."""
    timeline: str
    """"host" or "device": the clock behind steps and stages."""
    door: str
    """The way in: "transformers" or "loop"."""
    versions: Mapping[str, str]
    config: Mapping[str, Any]
    from_env: tuple[str, ...] = ()
    """Configuration fields that the environment set."""
    started_unix: float
    """Wall clock, for people; no duration is computed from it."""
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True, slots=True)
class Checklist:
    """One item of the startup checklist. Of several records of one item the last one holds."""

    item: str
    status: str
    """applied, on trial, already so, advised, not applicable, skipped, failed."""
    before: str | None = None
    """What was found. None: there is nothing to say, as in the next two."""
    after: str | None = None
    """What it is made, or would be where that is advised."""
    why: str | None = None
    saved_seconds: tuple[float, float, float] | None = None
    """Where it was proven: what it saves of a mean step, between the ends of the 99.9 % interval of that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Amounts:
    """What went through the model. None: unknown."""

    samples: int | None = 0
    tokens: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Up to 64 optimizer steps as columns of equal length. A stage that can't be known is an empty column."""

    step: tuple[int, ...]
    step_time: tuple[float | None, ...]
    """Seconds, as the stages; None for a step whose device events were lost."""
    data_time: tuple[float | None, ...] = ()
    forward_time: tuple[float | None, ...] = ()
    backward_time: tuple[float | None, ...] = ()
    optimizer_time: tuple[float | None, ...] = ()
    gc_time: tuple[float | None, ...] = ()
    other_time: tuple[float | None, ...] = ()
    model_flops: tuple[int | None, ...] = ()
    """On this rank; None for a step whose FLOPs are unknown."""
    samples: tuple[int | None, ...] = ()
    tokens: tuple[int | None, ...] = ()
    excluded: tuple[str | None, ...] = ()
    """Why a step is in no row: "first", "restart", "counted", "recounted", "evaluation", "checkpoint", "lost"; None:
    it is in one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What was logged, and at which step."""

    step: int
    metrics: Mapping[str, Number]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gc:
    """One garbage collection."""

    step: int
    """The optimizer step it fell in."""
    stage: str
    """The stage it fell in, or "aside" for evaluation and checkpoints, "elsewhere" for other threads."""
    generation: int
    start: float
    seconds: float
    collected: int
    automatic: bool
    """False: somebody called `gc.collect`."""
    ours: str | None = None
    """Why the checklist made it: "schedule", or "startup" for its first full one. None: it is the program's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Time that belongs to no step."""

    kind: str
    """evaluation, checkpoint."""
    step: int
    """Optimizer steps done when it began."""
    start: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Flops:
    """What was counted in a step, on this rank."""

    step: int
    model_flops: int
    """Of forward and backward: the numerator of MFU."""
    hardware_flops: int
    """Of everything executed: the numerator of HFU."""
    by_phase: Mapping[str, int]
    """forward, backward, recompute, attention_recompute, optimizer."""
    by_dtype: Mapping[str, int]
    """Model FLOPs by the number format of the operands."""
    source: str
    """"counted": in the step as it ran. "fake-tensor copy": on a copy of the model whose tensors hold no numbers.
    "closed form": by the sizes of the weights."""
    coverage: float | None
    """Of the elements of weights that should have been multiplied as matrices, the share that was seen to be."""
    uncounted: Mapping[str, int]
    """Calls of operations that multiply matrices, or may do so, and have no formula."""
    lower_bound: bool
    """Whether there was more work than was counted."""
    whole_step: bool = True
    """False: only the batches of a new shape, and those after them."""
    compiled: bool = False
    """Whether something is compiled, and ran eagerly to be counted."""
    logical_flops: int | None = None
    """Of operations on sharded tensors, as though one rank did them all; None where there are none."""
    causal_flops: int = 0
    """Of fused attention with a causal mask, counted in full: a kernel that skips the mask does about half of it."""
    over_six_n: float | None = None
    """Model FLOPs over six per token and multiplied weight. None where there are no tokens."""
    products: tuple[tuple[str, str, str, int], ...] = ()
    """The heaviest: operation, shapes, number format, FLOPs."""
    copies: tuple[tuple[str, str, int], ...] = ()
    """The largest: operation, shape, bytes."""
    reads: Mapping[str, int] = field(default_factory=dict)
    """How often the host waited to read from the device, by the line that asked."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """What went wrong in counting, by operation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Some optimizer steps over all ranks, put together from what each of them did. In rank 0's file."""

    first_step: int
    last_step: int
    """By the trainer's count, as `first_step`; both are in it."""
    steps: int
    """Those of them that are in rows, or were counted again: what follows is about these."""
    ranks: int
    seconds: float
    """Of the slowest rank: the job is not through before it."""
    samples: int | None
    """Over all ranks, as the next two. None: unknown."""
    tokens: int | None
    useful_tokens: int | None
    model_flops: int | None = None
    """What all ranks did, each counted by itself; so the next."""
    hardware_flops: int | None = None
    asks: Mapping[str, int] = field(default_factory=dict)
    """What all ranks ask each other for, by name: the least that any of them asks for."""
    holds: Mapping[str, int] = field(default_factory=dict)
    """From the end of which step on they do so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A fit in figures, so far or at its end. None: unknown."""

    run_id: str
    attempt: int
    step: int
    """The trainer's count of optimizer steps."""
    steps: int
    """Optimizer steps of this attempt."""
    included_steps: int
    """Those that are in rows: without the first, and without those that an evaluation or a checkpoint fell in."""
    lost_steps: int = 0
    """Steps without a time: their device events were lost."""
    included_seconds: float
    """Length of the included steps."""
    stage_seconds: Mapping[str, float]
    """Their stages; empty where unknown."""
    span_seconds: Mapping[str, float] = field(default_factory=dict)
    """Time outside of steps, by kind."""
    samples: int | None
    """Of all steps of this attempt, as `tokens`."""
    tokens: int | None
    included_samples: int | None
    """Of the included steps, as the next two: for rates."""
    included_tokens: int | None
    included_useful_tokens: int | None
    model_flops: int | None = None
    """Of those included steps whose FLOPs are known, on this rank; as the next two."""
    hardware_flops: int | None = None
    flops_seconds: float | None = None
    flops_steps: int = 0
    """Included steps whose FLOPs are known."""
    flops_source: str | None = None
    """Sources of the FLOPs: "counted", "scaled", "fake-tensor copy", "closed form", or several of these."""
    flops_unknown: str | None = None
    """Why FLOPs are known of fewer steps than are included; None: they are known of all, or nobody asked."""
    mfu_unknown: str | None = None
    """Why there is no MFU where FLOPs are known."""
    flops_coverage: float | None = None
    """As in `Flops`, at the last count; the next too."""
    flops_lower_bound: bool = False
    flops_dtype: str | None = None
    """The number format that carries most FLOPs; so the next, of one device."""
    peak_flops_per_second: float | None = None
    peak_source: str | None = None
    peak_measured: bool = False
    total_samples: int | None
    """Of all attempts so far, counted by the checkpoints between them; as the next."""
    total_tokens: int | None
    gc_collections: tuple[int, ...] | None
    """Collections by generation, None where collections are not timed, as in the next four."""
    gc_seconds: float | None
    """How long they took together; the longest comes next."""
    gc_longest: float | None
    gc_scheduled_seconds: float | None = None
    """How long those took that the checklist's schedule made. The rest is the program's own."""
    gc_startup_seconds: float | None = None
    """How long the checklist's first full collection took. It is made once, and none of the collections above."""
    proofs: Mapping[str, str] = field(default_factory=dict)
    """Items of the checklist that were tried, each with what came of it."""
    failure: str | None = None
    """Why measuring stopped early, where it did."""

    @property
    def mfu(self) -> float | None:
        """Model FLOPs per second over the peak, from 0 to 1."""
        return self._of_peak(self.model_flops)

    @property
    def hfu(self) -> float | None:
        """All FLOPs per second over the peak, from 0 to 1."""
        return self._of_peak(self.hardware_flops)

    def _of_peak(self, flops: int | None) -> float | None:
        if flops is None or not self.flops_seconds or not self.peak_flops_per_second:
            return None
        return flops / self.flops_seconds / self.peak_flops_per_second

    @property
    def step_time(self) -> float | None:
        """Seconds per included step."""
        return self.included_seconds / self.included_steps if self.included_steps else None


Record = Run | Checklist | Steps | Row | Gc | Span | Flops | Window | Summary
