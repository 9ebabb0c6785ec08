"""Parts of a summary, one per feature. A part is None if its feature is off."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class FlopsSummary:
    """FLOPs of the included steps on this rank, and the device's peak. None: unknown."""

    model_flops: int | None = None
    """Model FLOPs of the included steps whose FLOPs are known. `hardware_flops`, `seconds` and `steps` cover the same
    steps."""
    hardware_flops: int | None = None
    seconds: float | None = None
    steps: int = 0
    source: str | None = None
    """Sources of the FLOPs, as in `Flops.source`. "scaled" means that FLOPs were computed from the counts of other
    batch sizes."""
    checked_step: int | None = None
    """Most recent step in which a new FLOP count gave the same result as an earlier count. None if no work was counted
    twice."""
    unknown: str | None = None
    """Reason why some included steps have unknown FLOPs. None if all FLOPs are known, or if `flops` is off."""
    mfu_unknown: str | None = None
    """Reason why MFU is unknown although FLOPs are known."""
    coverage: float | None = None
    """`Flops.coverage` of the most recent count. `lower_bound` is of the most recent count too."""
    lower_bound: bool = False
    uncounted: tuple[str, ...] = ()
    """Names in `Flops.uncounted` of the last count."""
    unmasked_share: float | None = None
    """Executed FLOPs without the FLOPs of masked pairs of attention (`Flops.masked_flops`), as a share of all executed
    FLOPs. None if no masked pairs were counted, or if this share differs between counts."""
    heaviest_modules: tuple[tuple[str, float], ...] = ()
    """Modules with the most executed FLOPs in the last count, each with its path and its share of all executed FLOPs.
    Empty: unknown."""
    beside_model: str | None = None
    """Words for the executed FLOPs of the last count that are no model FLOPs, such as "recomputation". Empty: all are
    model FLOPs. None: unknown."""
    dtype: str | None = None
    """Number format with the most model FLOPs. `peak_flops_per_second` is the peak of one device in this format."""
    peak_flops_per_second: float | None = None
    peak_source: str | None = None
    peak_measured: bool = False
    devices: int = 1
    """Number of devices that the rank drives. They share the FLOPs."""

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
    """Number of collections of each generation."""
    seconds: float
    """Seconds of all collections together. `longest` is the time of the longest collection."""
    longest: float
    scheduled_seconds: float | None = None
    """Seconds of the collections that the checklist ran on its schedule. Python or the program ran the other
    collections. This field and `startup_seconds` are None if unknown."""
    startup_seconds: float | None = None
    """Seconds of the full collection that the checklist runs at startup. No other field counts this collection."""
    scheduled_made: int | None = None
    """Sum over the scheduled collections: number of objects that were made since the previous collection and not yet
    freed."""
    scheduled_garbage: int | None = None
    """Number of garbage objects that the scheduled collections found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StallSummary:
    """Stalls of this rank."""

    count: int = 0
    seconds: float = 0.0
    """Total duration of the stalls, in seconds."""
    under_way: bool = False
    """True: the last stall had not ended when the summary was made."""
    where: str | None = None
    """Sentences that this rank logged about the last stall. None if there was no stall, or if another rank logged these
    sentences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySummary:
    """Memory of this rank."""

    parts_gb: Mapping[str, float] = field(default_factory=dict)
    """Memory of each known part, in GB. The names are the fields of `Memory` without `_gb`, such as "weights"."""
    resident_gb_per_hour: float | None = None
    """Growth per hour of the resident memory of this rank and its child processes. None if there are too few `use`
    records."""
    micro_batch: int | None = None
    """Number of samples in the largest micro-batch of the measured step. `micro_batch`, `micro_batches` and
    `data_parallel` are None if unknown."""
    micro_batches: int | None = None
    """Number of micro-batches of the measured step."""
    data_parallel: int | None = None
    """Number of groups of ranks that process different samples. All ranks of a group process the same samples."""

    @property
    def global_batch(self) -> int | None:
        """Number of samples per step over all ranks, computed as if all micro-batches had the largest size."""
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
    """Number of steps between the first and the last reading."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuSummary:
    """Load of the machine during a fit. None: unknown."""

    cpus: int | None = None
    """Number of CPUs that this rank may use."""
    no_cpu_share: float | None = None
    """Share of the fit in which the training thread was ready to run and waited for a CPU, from 0 to 1."""
    other_cpus: float | None = None
    """Mean number of this rank's CPUs that other programs used. Other ranks of the job don't count as other programs.
    """
    idle_cpus: float | None = None
    """Mean number of this rank's CPUs that were idle."""
    load_average: float | None = None
    """Load average over the minute before the summary was made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StragglerSummary:
    """Stragglers, on rank 0."""

    steps: int = 0
    """Number of steps that were searched for stragglers. `seconds` is the duration of these steps."""
    seconds: float = 0.0
    model_compared: bool = True
    """False: only time outside of the model was compared, because ranks wait for each other within the model."""
    waits_timed: bool = True
    """False: the backward was not compared, because its waits for other ranks are unknown."""
    comparable: bool = True
    """False: waits of this rank for other ranks were not seen, so ranks can't be compared."""
    other_work: int = 0
    """Number of ranks that were not compared in the newest window, because no other rank does the same work."""
    undecided_steps: int = 0
    """Number of steps in which half of the ranks or more looked slow on their devices. Such ranks may wait for a slow
    rank where no wait is seen, so none is named for these steps."""
    seconds_by_cause: Mapping[str, float] = field(default_factory=dict)
    """Seconds that the job lost to stragglers, for each cause in `Straggler.cause`."""
    costliest: tuple[tuple[int, str, float, int], ...] = ()
    """Costliest stragglers, each as rank, cause, lost seconds and number of affected steps. Of a set of slow ranks,
    only the slowest rank is named."""
    costliest_ranks: tuple[tuple[int, ...], ...] = ()
    """All ranks of the slow set, for each entry of `costliest`. The tuple is empty if a single rank was slow."""
    uneven_batches_seconds: float | None = None
    """Seconds lost because ranks had batches of unequal sizes. `uneven_stages_seconds` and `chance_seconds` don't
    include the time lost to unequal batches. The three fields are None if ranks were not compared."""
    uneven_stages_seconds: float | None = None
    """Seconds lost because the stages of the pipeline take unequal times."""
    chance_seconds: float | None = None
    """Seconds lost to chance: in each step, some rank happens to be slower than the other ranks."""
    slowdown: float | None = None
    """Measured duration of the steps, divided by their duration if all ranks were equally fast. None if unknown, or if
    there is only one rank."""

    backward_waiting: float | None = None
    """Upper limit, from 0 to 1: share of the backward in which this rank waited for other ranks. A wait can begin only
    after the rank has computed the gradient that is usually computed last. None: unknown."""

    def named(self) -> Iterator[tuple[tuple[int, ...], str, float, int]]:
        """Yield the entries of `costliest`. The entry of a set of slow ranks names all these ranks."""
        sets = self.costliest_ranks or ((),) * len(self.costliest)
        for (rank, cause, seconds, steps), ranks in zip(self.costliest, sets, strict=False):
            yield ranks or (rank,), cause, seconds, steps
