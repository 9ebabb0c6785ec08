"""Parts of a summary, one per feature. A part is None if its feature is off."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class FlopsSummary:
    """FLOPs of the included steps on this rank, and the device's peak. None: unknown."""

    model_flops: int | None = None
    """Of the included steps whose FLOPs are known; so are `hardware_flops`, `seconds` and `steps`."""
    hardware_flops: int | None = None
    seconds: float | None = None
    steps: int = 0
    source: str | None = None
    """As in `Flops.source`; "scaled": from the counts of other batch sizes."""
    checked_step: int | None = None
    """Last step in which a new FLOP count gave the same result as an earlier one. None: no work was counted twice."""
    unknown: str | None = None
    """Why FLOPs of some included steps are unknown. None: all are known, or `flops` is off."""
    mfu_unknown: str | None = None
    """Why MFU is unknown although FLOPs are known."""
    coverage: float | None = None
    """Of the most recent count, like `lower_bound`."""
    lower_bound: bool = False
    uncounted: tuple[str, ...] = ()
    """Names in `Flops.uncounted` of the last count."""
    unmasked_share: float | None = None
    """Share of executed FLOPs without masked pairs (`Flops.masked_flops`). None: none counted, or counts differ."""
    heaviest_modules: tuple[tuple[str, float], ...] = ()
    """Paths with the most executed FLOPs in the last count, and their shares of all. Empty: unknown."""
    beside_model: str | None = None
    """Executed FLOPs of the last count that are no model FLOPs, such as "recomputation". Empty: none. None: unknown."""
    dtype: str | None = None
    """Number format with the most model FLOPs. `peak_flops_per_second` is the peak of one device in this format."""
    peak_flops_per_second: float | None = None
    peak_source: str | None = None
    peak_measured: bool = False
    devices: int = 1
    """That the rank drives, and that share the FLOPs."""

    @property
    def mfu(self) -> float | None:
        """Model FLOPs per second divided by the peak, from 0 to 1."""
        return self._of_peak(self.model_flops)

    @property
    def hfu(self) -> float | None:
        """Executed FLOPs per second divided by the peak, from 0 to 1."""
        return self._of_peak(self.hardware_flops)

    @property
    def hfu_causal(self) -> float | None:
        """HFU without the masked part of causal attention, which kernels skip. None if `unmasked_share` is None."""
        return None if self.hfu is None or self.unmasked_share is None else self.hfu * self.unmasked_share

    def _of_peak(self, flops: int | None) -> float | None:
        if flops is None or not self.seconds or not self.peak_flops_per_second or not self.devices:
            return None
        return flops / self.seconds / self.devices / self.peak_flops_per_second


@dataclass(frozen=True, kw_only=True, slots=True)
class GcSummary:
    """Garbage collections of a fit."""

    collections: tuple[int, ...]
    """By generation."""
    seconds: float
    """Of all collections; `longest` is the longest one."""
    longest: float
    scheduled_seconds: float | None = None
    """Of the checklist's schedule; Python or the program ran the others. Like `startup_seconds`, None if unknown."""
    startup_seconds: float | None = None
    """The checklist's full collection at startup, which no other field counts."""
    scheduled_made: int | None = None
    """Objects made since the previous collection and not yet freed, summed over the scheduled collections."""
    scheduled_garbage: int | None = None
    """That the scheduled collections found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StallSummary:
    """Stalls of this rank."""

    count: int = 0
    seconds: float = 0.0
    under_way: bool = False
    """True: the last stall had not ended when the summary was made."""
    where: str | None = None
    """What this rank logged about the last stall. None: no stall, or another rank logged it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySummary:
    """Memory of this rank."""

    parts_gb: Mapping[str, float] = field(default_factory=dict)
    """By the fields of `Memory` without `_gb`, such as "weights"."""
    resident_gb_per_hour: float | None = None
    """Growth of this rank's and its children's resident memory. None: there are too few `use` records."""
    micro_batch: int | None = None
    """Samples in the largest micro-batch of the measured step. None: unknown, here and in the next two."""
    micro_batches: int | None = None
    """Number in the measured step."""
    data_parallel: int | None = None
    """Groups of ranks that process different samples. All ranks of a group process the same."""

    @property
    def global_batch(self) -> int | None:
        """Samples per step over all ranks, as if all micro-batches had the largest size."""
        if self.micro_batch is None or self.micro_batches is None or self.data_parallel is None:
            return None
        return self.micro_batch * self.micro_batches * self.data_parallel


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergySummary:
    """Energy that the whole device of this rank used during training, from the device's own counter.

    The energy is the difference between the first and the last reading of the counter. Evaluations and checkpoints
    between the two readings are included.
    """

    joules: float
    steps: int
    """Between the first and the last reading."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuSummary:
    """Load of the machine during a fit. None: unknown."""

    cpus: int | None = None
    """That this rank may use."""
    no_cpu_share: float | None = None
    """Share of the fit, from 0 to 1, in which the training thread was ready to run and waited for a CPU."""
    other_cpus: float | None = None
    """Mean number of this rank's CPUs that other programs used; other ranks of the job don't count."""
    idle_cpus: float | None = None
    """Mean number of this rank's CPUs that were idle."""
    load_average: float | None = None
    """Over the minute before the summary was made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StragglerSummary:
    """Stragglers, on rank 0."""

    steps: int = 0
    """That were searched for stragglers; `seconds` is their duration."""
    seconds: float = 0.0
    model_compared: bool = True
    """False: only time outside of the model was compared, because ranks wait for each other within the model."""
    waits_timed: bool = True
    """False: the backward was not compared, because its waits for other ranks are unknown."""
    comparable: bool = True
    """False: waits of this rank for other ranks were not seen, so ranks can't be compared."""
    other_work: int = 0
    """Ranks that the newest window left out, because no other rank does the same work."""
    undecided_steps: int = 0
    """Half of the ranks or more looked slow on their devices: they may wait where no wait is seen, so none is named."""
    seconds_by_cause: Mapping[str, float] = field(default_factory=dict)
    """Lost by the job, by `Straggler.cause`."""
    costliest: tuple[tuple[int, str, float, int], ...] = ()
    """Rank, cause, lost seconds and affected steps. Of a set of slow ranks, only the slowest is named."""
    costliest_ranks: tuple[tuple[int, ...], ...] = ()
    """The whole slow set, for each entry of `costliest`; empty if a single rank was slow."""
    uneven_batches_seconds: float | None = None
    """Lost by batches of unequal sizes, without the next two. None, as these, if ranks were not compared."""
    uneven_stages_seconds: float | None = None
    """Lost because the stages of the pipeline take unequal times."""
    chance_seconds: float | None = None
    """Lost to chance: in each step, some rank happens to be slower than the others."""
    slowdown: float | None = None
    """Duration of the steps, divided by that of equally fast ranks. None: unknown, or only one rank."""

    backward_waiting: float | None = None
    """Upper limit of the backward's share, from 0 to 1, in which this rank waited for others. None: unknown."""

    def named(self) -> Iterator[tuple[tuple[int, ...], str, float, int]]:
        """Yield the entries of `costliest`, with all ranks of a set."""
        sets = self.costliest_ranks or ((),) * len(self.costliest)
        for (rank, cause, seconds, steps), ranks in zip(self.costliest, sets, strict=False):
            yield ranks or (rank,), cause, seconds, steps
