"""Parts of a summary, one per feature. A part is None if its feature is off."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class FlopsSummary:
    """FLOPs of the included steps on this rank, and the device's peak. None: unknown."""

    model_flops: int | None = None
    """Model FLOPs of the included steps whose FLOPs are known. The next three fields cover the same steps."""
    hardware_flops: int | None = None
    seconds: float | None = None
    steps: int = 0
    source: str | None = None
    """Sources of the FLOPs: "counted", "scaled", "fake-tensor copy", "closed form", or several of these."""
    checked_step: int | None = None
    """Last step whose count confirmed an earlier count of the same work. None if all work was counted once."""
    unknown: str | None = None
    """Reason why some included steps have unknown FLOPs. None if all FLOPs are known, or if `flops` is off."""
    mfu_unknown: str | None = None
    """Reason why MFU is unknown although FLOPs are known."""
    coverage: float | None = None
    """Coverage of the last count, as in `Flops`. `lower_bound` is from the same count."""
    lower_bound: bool = False
    uncounted: tuple[str, ...] = ()
    """Names in `Flops.uncounted` of the last count."""
    unmasked_share: float | None = None
    """Share of the executed FLOPs that remains without the masked part of attention (`Flops.masked_flops`). None if no
    kernel got a causal mask, or if counts differ."""
    heaviest_modules: tuple[tuple[str, float], ...] = ()
    """Modules with the most executed FLOPs in the last count, each with its path and its share of all executed FLOPs.
    Empty: unknown."""
    dtype: str | None = None
    """Number format that carries most FLOPs. `peak_flops_per_second` is the peak of one device in this format."""
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
    """Number of collections by generation."""
    seconds: float
    """Seconds of all collections; `longest` is the maximum."""
    longest: float
    scheduled_seconds: float | None = None
    """Seconds of the collections by the checklist's schedule. Python or the program ran the other collections. This
    field and the next are None if unknown."""
    startup_seconds: float | None = None
    """Seconds of the checklist's first full collection, which no other field includes."""
    scheduled_made: int | None = None
    """Number of objects that the program made and didn't free by itself, up to the last scheduled collection. This
    field and the next are None in an older journal."""
    scheduled_garbage: int | None = None
    """Number of garbage objects that the scheduled collections found. The other objects of `scheduled_made` were no
    garbage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StallSummary:
    """Stalls of this rank."""

    count: int = 0
    seconds: float = 0.0
    """Seconds, in all these stalls together, in which no step ended."""
    under_way: bool = False
    """True: the last of these stalls had not ended."""
    where: str | None = None
    """Sentences that this rank logged about the last stall. None if there was no stall, or if another rank logged them.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySummary:
    """Memory of this rank."""

    parts_gb: Mapping[str, float] = field(default_factory=dict)
    """Memory by part, in GB, as far as known. The names are the fields of `Memory` without `_gb`, such as "weights"."""
    resident_gb_per_hour: float | None = None
    """Growth per hour of the resident memory of this rank and its child processes. None if there are too few `use`
    records."""
    micro_batch: int | None = None
    """Number of samples in the largest micro-batch of the measured step. This field and the next two are None if
    unknown."""
    micro_batches: int | None = None
    """Number of micro-batches of the measured step."""
    data_parallel: int | None = None
    """Number of data-parallel groups. The ranks of a group process the same samples."""

    @property
    def global_batch(self) -> int | None:
        """Number of samples in an optimizer step of all ranks, if all micro-batches are as large as the largest."""
        if self.micro_batch is None or self.micro_batches is None or self.data_parallel is None:
            return None
        return self.micro_batch * self.micro_batches * self.data_parallel


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergySummary:
    """Energy of the whole device of this rank, by the device's own counter, while training went on.

    The energy is that from the first reading of the counter to the last, with evaluations and checkpoints.
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
    """Mean number of this rank's CPUs that other programs used. Other ranks of the job don't count."""
    idle_cpus: float | None = None
    """Mean number of this rank's CPUs that were idle."""
    load_average: float | None = None
    """Load average over the minute before the summary was made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StragglerSummary:
    """Stragglers, on rank 0."""

    steps: int = 0
    """Number of steps that were searched for stragglers. The next fields cover these steps."""
    seconds: float = 0.0
    model_compared: bool = True
    """False: ranks on devices wait for each other within the model, so only time outside of the model was compared."""
    waits_timed: bool = True
    """False: on a device, waits for other ranks within the backward are unknown, so only the other stages were
    compared."""
    comparable: bool = True
    """False: waits of this rank for other ranks were not seen, so ranks can't be compared."""
    other_work: int = 0
    """Number of ranks that were not compared in the newest window, because no other rank does the same work."""
    seconds_by_cause: Mapping[str, float] = field(default_factory=dict)
    """Seconds that the job lost to stragglers, by cause as in `Straggler`."""
    costliest: tuple[tuple[int, str, float, int], ...] = ()
    """Costliest stragglers, each as rank, cause, lost seconds and number of affected steps. Of a set of slow ranks,
    only the slowest rank is named."""
    costliest_ranks: tuple[tuple[int, ...], ...] = ()
    """For each entry of `costliest`, in the same order, all ranks of the set. The inner tuple is empty for a single
    rank."""
    uneven_batches_seconds: float | None = None
    """Seconds lost because ranks had batches of unequal sizes. The next two fields don't contain these seconds. All
    three are None if ranks were not compared."""
    uneven_stages_seconds: float | None = None
    """Seconds lost because the stages of the pipeline take unequal times."""
    chance_seconds: float | None = None
    """Seconds lost by chance: in each step some rank is the slowest, and takes longer than the mean."""
    slowdown: float | None = None
    """Duration of the steps, divided by the duration that they would have without slow ranks, uneven work and chance.
    None if unknown, or if there is only one rank."""

    backward_waiting: float | None = None
    """Share of the backward that is left when the gradient that usually comes last is ready, from 0 to 1. The rank
    waits for other ranks for at most this share. None: unknown."""

    def named(self) -> Iterator[tuple[tuple[int, ...], str, float, int]]:
        """Yield the entries of `costliest`, each with all ranks of its set instead of the slowest."""
        sets = self.costliest_ranks or ((),) * len(self.costliest)
        for (rank, cause, seconds, steps), ranks in zip(self.costliest, sets, strict=False):
            yield ranks or (rank,), cause, seconds, steps
