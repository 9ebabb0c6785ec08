"""Records of a run, as frozen dataclasses.

`perf_callbacks.kernel.records.codec` encodes records as lines of a journal.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.machine_records import Memory, OutOfMemory, Use
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.kernel.records.rank_records import Stall, Straggler
from perf_callbacks.kernel.records.summary_parts import (
    CpuSummary,
    EnergySummary,
    FlopsSummary,
    GcSummary,
    MemorySummary,
    StallSummary,
    StragglerSummary,
)

SCHEMA = 2
"""Version of the journal, incremented when a key is removed or changes its meaning."""

APPLIED = "applied"
"""Status of a checklist item that is applied."""

SCHEDULED, STARTUP = "schedule", "startup"
"""Reasons why the checklist collects garbage."""

Number = int | float


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """First record of each fit and of each resumed attempt: program, machine and settings. `t` counts from here."""

    run_id: str
    """Identifies the run: new for each fit, kept when a fit is resumed."""
    attempt: int
    """Number of the attempt: 1 for the first start, plus 1 for each resume."""
    step: int
    """Number of optimizer steps done before this attempt."""
    rank: int
    world_size: int
    device: str
    """Name of the measured device, such as "cpu" or "NVIDIA H200"."""
    tensor_cores: bool = False
    """True: the device has NVIDIA's tensor cores."""
    devices: int = 1
    """Number of devices that the rank drives. With several devices, stages are timed on the first device."""
    data_parallel: int | None = None
    """Number of groups of ranks that process different samples. All ranks of a group process the same samples. None if
    unknown."""
    timeline: str
    """Clock that times steps and stages: "host" or "device"."""
    unstaged: str | None = None
    """Reason why stages are not timed. None: they are timed."""
    door: str
    """The integration, such as "transformers" or "loop"."""
    versions: Mapping[str, str]
    config: Mapping[str, Any]
    from_env: tuple[str, ...] = ()
    """Configuration fields that the environment set."""
    from_file: Mapping[str, str] = field(default_factory=dict)
    """Configuration fields that a file set, each with the place in the file."""
    program: str | None = None
    """The script, or the module after `-m`. None means unknown, in this field and in each field up to `batch`."""
    command_line: str | None = None
    """Program and arguments, at most 4,096 characters. "***" stands for values that look like secrets."""
    directory: str | None = None
    """Working directory at the start."""
    host: str | None = None
    job_id: str | None = None
    """Id of the job, from Slurm, LSF, PBS, Flux or torchrun."""
    model: str | None = None
    """Class of the model whose FLOPs are counted, without wrappers such as DistributedDataParallel."""
    parameters: int | None = None
    """Number of parameters of the model in the field `model`, including the shards on other ranks."""
    batch: int | None = None
    """Number of samples per batch, as the DataLoader states it."""
    started_unix: float
    """Wall-clock time at this record, in seconds since 1970. The time between attempts is computed from this field only
    if `uptime_seconds` is unknown."""
    process_seconds: float | None = None
    """Seconds from the start of the process to this record, only in the first fit of a process. None if unknown, as in
    a notebook."""
    restore_seconds: float | None = None
    """Seconds that the framework spent reading the checkpoint before this record. None if there was no checkpoint, or
    if the time is unknown."""
    boot_id: str | None = None
    """Id that Linux gives to the current boot of the machine. `boot_id` and `uptime_seconds` are None on systems other
    than Linux."""
    uptime_seconds: float | None = None
    """Seconds from the machine's boot to this record."""
    pid: int | None = None
    """Id of the process. `pid` and `pid_namespace`, the kernel's number of the container's processes, are None on
    systems other than Linux."""
    pid_namespace: int | None = None
    resumed_unix: float | None = None
    """`started_unix` of the earlier attempt whose checkpoint this attempt loaded. None if the attempt was not resumed,
    or if the value is unknown."""
    last_sign_unix: float | None = None
    """Wall-clock time of the most recent write by an earlier attempt, to this journal or to its summary file. None if
    there was no journal."""
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True, slots=True)
class Checklist:
    """State of one item of the startup checklist. If an item has several records, the last record is valid."""

    item: str
    status: str
    """One of applied, already so, advised, not applicable, skipped, failed."""
    before: str | None = None
    """State before the item was applied. `before`, `after` and `why` are None if not applicable."""
    after: str | None = None
    """State after the item was applied, or the state that the item advises."""
    why: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Amounts:
    """Number of samples and of tokens that the model processed. None: unknown."""

    samples: int | None = 0
    tokens: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Up to 256 optimizer steps, as columns of equal length. The column of a stage with unknown times is empty."""

    step: tuple[int, ...]
    step_time: tuple[float | None, ...]
    """Seconds of each step. In this column and in the columns of stages, None means that the device gave no times for
    the step."""
    data_time: tuple[float | None, ...] = ()
    forward_time: tuple[float | None, ...] = ()
    backward_time: tuple[float | None, ...] = ()
    optimizer_time: tuple[float | None, ...] = ()
    communication_time: tuple[float | None, ...] = ()
    gc_time: tuple[float | None, ...] = ()
    other_time: tuple[float | None, ...] = ()
    model_flops: tuple[int | None, ...] = ()
    """Model FLOPs on this rank; None for a step whose FLOPs are unknown."""
    samples: tuple[int | None, ...] = ()
    tokens: tuple[int | None, ...] = ()
    excluded: tuple[str | None, ...] = ()
    """Reason why no row of metrics includes a step. "first" and "restart": first step of a new fit or of a resumed
    attempt. "counted" and "recounted": FLOPs were counted in the step. "evaluation", "checkpoint" and "profiled": the
    step contains an evaluation, a checkpoint or a profile. "lost": the device gave no time. "captured": a CUDA graph
    was captured. "interrupted": an interrupt may have spoiled the step's times. "suspended": the whole process was
    suspended. None if a row includes the step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Row of metrics that were logged, and the step at which they were logged."""

    step: int
    metrics: Mapping[str, Number]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gc:
    """One garbage collection."""

    step: int
    """Optimizer step in which the collection ran."""
    stage: str
    """Stage in which the collection ran. "aside": an evaluation or a checkpoint. "elsewhere": another thread."""
    generation: int
    start: float
    seconds: float
    collected: int
    automatic: bool
    """False: code called `gc.collect`."""
    ours: str | None = None
    """Reason why the checklist collected garbage: "startup" for the full collection at startup, "schedule" for
    scheduled collections. None if Python or the program collected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Evaluation or checkpoint. The time of an evaluation or a checkpoint is not part of any step."""

    kind: str
    """One of evaluation, checkpoint."""
    step: int
    """Number of optimizer steps done when the span began."""
    start: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Cause that limits the speed of a run, and its remedy. Findings are written at the end of a fit."""

    cause: str
    """One of stall, cpu, threads, data, host, sync, recompute, attention, optimizer, gc, straggler, uneven, drift,
    evaluation, checkpoint, startup, memory, precision, compile, shape, throttle, copy, communication, failed. "failed":
    a rule of the advice failed, so its cause may be there too."""
    share: float | None
    """Share of the fit's wall time after the startup that the remedy could save, from 0 to 1. For the cause "startup":
    share of all wall time that passed before the callback was set up. None: unknown."""
    low: float | None = None
    """Lower end of the interval around `share`. The interval follows from the variation between steps and from the
    error of estimates. None if unknown."""
    evidence: str
    remedy: str
    """Line of code to write, or action to take."""
    line: str | None = None
    """Slowest line of the program, with its function, such as "train.py:55 `Snippets.encode`". None if unknown."""
    measured: tuple[float, float, float] | None = None
    """Speedup that `perf-callbacks try` measured for the remedy: lower end of the 95 % interval, estimate, upper end.
    None if no trial of this program is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Amounts of work of all ranks together in a window of optimizer steps. Only rank 0 writes this record."""

    first_step: int
    last_step: int
    """Last step of the window, inclusive. `first_step` and `last_step` are numbers in the trainer's count of steps."""
    steps: int
    """Number of steps whose samples, tokens and FLOPs this record adds up. Excluded steps are left out, unless the
    reason in `Steps.excluded` is "recounted"."""
    ranks: int
    """Number of ranks of the job."""
    missing: int = 0
    """Number of ranks whose data came too late. If any rank is missing, the amounts of the job are unknown."""
    missing_ranks: tuple[int, ...] = ()
    """Ranks whose data came too late, in ascending order; at most 64 ranks."""
    seconds: float
    """Seconds of the slowest rank for the steps that `steps` counts. The job takes as long as its slowest rank."""
    samples: int | None
    """Samples of all ranks. None: unknown. The fields `tokens` and `useful_tokens` are sums over all ranks too."""
    tokens: int | None
    useful_tokens: int | None
    model_flops: int | None = None
    """Model FLOPs of all ranks together. `hardware_flops` also covers all ranks."""
    hardware_flops: int | None = None
    asks: Mapping[str, int] = field(default_factory=dict)
    """Values that the ranks agree on. Each key is the name of a value. The agreed value is the minimum of the ranks'
    proposals."""
    holds: Mapping[str, int] = field(default_factory=dict)
    """Maps each name in `asks` to a step. From the end of this step on, all ranks use the agreed value."""
    job: Mapping[str, float] = field(default_factory=dict)
    """Use of machines by the whole job since the previous window. The keys are the names of the metrics `perf/job_…`.
    Empty if unknown."""
    by_rank: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Use of the machine by each rank, only in jobs of up to 64 ranks. Each tuple has one value per rank. The keys are
    "cpu_cores" and names of fields of the `use` record. "cpu_cores" stands for the number of CPU cores that a rank
    keeps busy. None: unknown."""


ENOUGH_STEPS, ENOUGH_SECONDS = 5, 10.0
"""A fit gets a verdict only if at least 5 steps were measured and all steps together took at least 10 seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Numbers that sum up a fit, so far or at its end. A field is None if it is unknown, or if its feature is off."""

    run_id: str
    attempt: int
    step: int
    """The trainer's count of optimizer steps."""
    steps: int
    """Number of optimizer steps of this attempt."""
    included_steps: int
    """Number of steps in rows of metrics: all steps without a reason in `Steps.excluded`."""
    lost_steps: int = 0
    """Number of steps without a time, because their device events were lost or a CUDA graph was captured."""
    included_seconds: float
    """Seconds of all included steps together."""
    stage_seconds: Mapping[str, float]
    """Seconds of each stage in the included steps; empty if unknown."""
    other_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of "generation" and of "rewards", which are parts of the stage `other` in TRL's trainers."""
    span_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent outside of steps, by kind: evaluation, checkpoint."""
    span_counts: Mapping[str, int] = field(default_factory=dict)
    """Number of steps after which there were spans, by kind: evaluation, checkpoint. Two files that are saved after one
    step count once."""
    wall_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each part of the fit's wall time: startup, first_step, flop_counting, steps, evaluation, checkpoint,
    own_work, other, and "suspended" if the process was suspended. The parts sum to the wall time."""
    samples: int | None
    """Number of samples in all steps of this attempt. `tokens` covers the same steps as `samples`."""
    tokens: int | None
    included_samples: int | None
    """Number of samples in the included steps. Rates are computed from `included_samples`, `included_tokens` and
    `included_useful_tokens`."""
    included_tokens: int | None
    included_useful_tokens: int | None
    total_samples: int | None
    """Number of samples in all attempts so far. Checkpoints carry `total_samples` and `total_tokens` to the next
    attempt."""
    total_tokens: int | None
    findings: tuple[Finding, ...] = ()
    """Causes that limit the run, the most expensive first. Empty: nothing is wrong, or too little is known."""
    failure: str | None = None
    """Reason why measuring stopped early."""
    flops: FlopsSummary | None = None
    gc: GcSummary | None = None
    stalls: StallSummary | None = None
    memory: MemorySummary | None = None
    energy: EnergySummary | None = None
    """Energy of the device. None if the device has no energy counter, if several processes share the device, or if the
    fit is short."""
    cpu: CpuSummary | None = None
    stragglers: StragglerSummary | None = None
    profiles: tuple[Profile, ...] = ()
    """Shortened `profile` records of this rank, each with at most three modules. Operations, copies and lines of the
    program are left out."""

    @property
    def mfu(self) -> float | None:
        """Model FLOPs per second divided by the peak, from 0 to 1."""
        return None if self.flops is None else self.flops.mfu

    @property
    def hfu(self) -> float | None:
        """Executed FLOPs per second divided by the peak, from 0 to 1."""
        return None if self.flops is None else self.flops.hfu

    @property
    def hfu_causal(self) -> float | None:
        """HFU without the masked part of causal attention; None if the masked part is unknown."""
        return None if self.flops is None else self.flops.hfu_causal

    @property
    def step_time(self) -> float | None:
        """Seconds per included step."""
        return self.included_seconds / self.included_steps if self.included_steps else None

    @property
    def joules_per_step(self) -> float | None:
        """Energy of this rank's device per step."""
        return self.energy.joules / self.energy.steps if self.energy is not None and self.energy.steps else None

    @property
    def joules_per_token(self) -> float | None:
        """Energy of this rank's device per token of this rank's included steps."""
        if self.joules_per_step is None or not self.included_tokens:
            return None
        return self.joules_per_step * self.included_steps / self.included_tokens

    @property
    def long_enough(self) -> bool:
        """True: the fit is long enough for findings that depend on times.

        A finding from the times of a shorter fit may be due to chance.
        """
        return self.included_steps >= ENOUGH_STEPS and self.wall_seconds.get("steps", 0.0) >= ENOUGH_SECONDS

    _repr_html_: ClassVar[Callable[["Summary"], str | None]]
    """Return the card as HTML: Jupyter calls this method if a summary is the last line of a cell. The package `report`
    sets the method, because records know no reports."""


Record = (
    Run
    | Checklist
    | Steps
    | Row
    | Gc
    | Span
    | Flops
    | Finding
    | Window
    | Summary
    | Stall
    | Straggler
    | Use
    | Memory
    | OutOfMemory
    | Profile
)
