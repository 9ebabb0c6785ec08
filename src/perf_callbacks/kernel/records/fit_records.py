"""Records of a run, as frozen dataclasses."""

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
"""Incremented when a key of the journal is removed or changes its meaning."""

APPLIED = "applied"
"""Status of a checklist item."""

SCHEDULED, STARTUP = "schedule", "startup"
"""Why the checklist collects garbage."""

Number = int | float


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """First record of each fit and of each resumed attempt: program, machine and settings. `t` counts from here."""

    run_id: str
    """New for each fit, kept when a fit is resumed."""
    attempt: int
    """1 for the first start, plus 1 for each resume."""
    step: int
    """Optimizer steps done before this attempt."""
    rank: int
    world_size: int
    device: str
    """Such as "cpu" or "NVIDIA H200"."""
    tensor_cores: bool = False
    """True: NVIDIA's."""
    devices: int = 1
    """That the rank drives. Stages are timed on the first."""
    data_parallel: int | None = None
    """Groups of ranks that process different samples. All ranks of a group process the same. None: unknown."""
    timeline: str
    """Clock of steps and stages: "host" or "device"."""
    unstaged: str | None = None
    """Why stages are not timed. None: they are."""
    door: str
    """The integration, such as "transformers" or "loop"."""
    versions: Mapping[str, str]
    config: Mapping[str, Any]
    from_env: tuple[str, ...] = ()
    """Configuration fields that the environment set."""
    from_file: Mapping[str, str] = field(default_factory=dict)
    """Configuration fields that a file set, and where."""
    program: str | None = None
    """The script, or the module after `-m`. None: unknown, here and in each field up to `batch`."""
    command_line: str | None = None
    """At most 4,096 characters. "***" stands for values that look like secrets."""
    directory: str | None = None
    """Working directory at the start."""
    host: str | None = None
    job_id: str | None = None
    """From Slurm, LSF, PBS, Flux or torchrun."""
    model: str | None = None
    """Class of the model whose FLOPs are counted, without wrappers such as DistributedDataParallel."""
    parameters: int | None = None
    """Of `model`, with the shards on other ranks."""
    batch: int | None = None
    """Samples per batch, as the DataLoader states it."""
    started_unix: float
    """Seconds since 1970. The time between attempts is computed from this only if `uptime_seconds` is unknown."""
    process_seconds: float | None = None
    """From the process's start to this record, in its first fit. None: a later fit, or unknown, as in a notebook."""
    restore_seconds: float | None = None
    """That the framework spent reading the checkpoint. None: no checkpoint, or unknown."""
    boot_id: str | None = None
    """Linux's id of the current boot. None on other systems, like `uptime_seconds`."""
    uptime_seconds: float | None = None
    """From the machine's boot to this record."""
    pid: int | None = None
    """Process. None outside of Linux, like `pid_namespace`, the kernel's number of the container's processes."""
    pid_namespace: int | None = None
    resumed_unix: float | None = None
    """`started_unix` of the attempt whose checkpoint was loaded. None: not resumed, or unknown."""
    last_sign_unix: float | None = None
    """Unix time of an earlier attempt's last write to this journal or its summary file. None: no journal."""
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True, slots=True)
class Checklist:
    """State of one item of the startup checklist. If an item has several records, the last record is valid."""

    item: str
    status: str
    """One of applied, already so, advised, not applicable, skipped, failed."""
    before: str | None = None
    """State before the item. Like `after` and `why`, None if not applicable."""
    after: str | None = None
    """State that the item has made, or advises."""
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
    """Of each step. None, here and in the columns of stages: the device gave no times."""
    data_time: tuple[float | None, ...] = ()
    forward_time: tuple[float | None, ...] = ()
    backward_time: tuple[float | None, ...] = ()
    optimizer_time: tuple[float | None, ...] = ()
    communication_time: tuple[float | None, ...] = ()
    gc_time: tuple[float | None, ...] = ()
    other_time: tuple[float | None, ...] = ()
    model_flops: tuple[int | None, ...] = ()
    """On this rank. None: unknown."""
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
    """In which the collection ran."""
    stage: str
    """In which the collection ran. "aside": an evaluation or a checkpoint. "elsewhere": another thread."""
    generation: int
    start: float
    seconds: float
    collected: int
    automatic: bool
    """False: code called `gc.collect`."""
    ours: str | None = None
    """Why the checklist collected: "startup" or "schedule". None: Python or the program collected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Evaluation or checkpoint. The time of an evaluation or a checkpoint is not part of any step."""

    kind: str
    """evaluation or checkpoint."""
    step: int
    """Optimizer steps done when the span began."""
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
    """Lower end of `share`'s interval, by the variation between steps and the error of estimates. None: unknown."""
    evidence: str
    remedy: str
    """Line of code to write, or action to take."""
    line: str | None = None
    """Slowest line of the program, such as "train.py:55 `Snippets.encode`". None: unknown."""
    measured: tuple[float, float, float] | None = None
    """Speedup by `perf-callbacks try`: lower end of the 95 % interval, estimate, upper end. None: no known trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Amounts of work of all ranks together in a window of optimizer steps. Only rank 0 writes this record."""

    first_step: int
    last_step: int
    """Inclusive. `first_step` and `last_step` are in the trainer's count of steps."""
    steps: int
    """Steps of the sums. Excluded steps are left out, unless the reason in `Steps.excluded` is "recounted"."""
    ranks: int
    """Of the job."""
    missing: int = 0
    """Ranks whose data came too late. If there is any, the amounts of the job are unknown."""
    missing_ranks: tuple[int, ...] = ()
    """The same, ascending; at most 64."""
    seconds: float
    """Of the slowest rank in the counted steps: the job takes as long."""
    samples: int | None
    """Of all ranks, like `tokens` and `useful_tokens`. None: unknown."""
    tokens: int | None
    useful_tokens: int | None
    model_flops: int | None = None
    """Of all ranks, like `hardware_flops`."""
    hardware_flops: int | None = None
    asks: Mapping[str, int] = field(default_factory=dict)
    """Values that the ranks agree on, by name: the smallest proposals."""
    holds: Mapping[str, int] = field(default_factory=dict)
    """Step from whose end on all ranks use the value in `asks`."""
    job: Mapping[str, float] = field(default_factory=dict)
    """Use of machines by the whole job since the previous window, by the metrics `perf/job_…`. Empty: unknown."""
    by_rank: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Use by each rank, in jobs of up to 64: busy cores ("cpu_cores"), and fields of the `use` record. None:
    unknown."""


ENOUGH_STEPS, ENOUGH_SECONDS = 5, 10.0
"""A fit gets a verdict only if so many steps were measured and took so long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Numbers that sum up a fit, so far or at its end. A field is None if it is unknown, or if its feature is off."""

    run_id: str
    attempt: int
    step: int
    """The trainer's count of optimizer steps."""
    steps: int
    """Of this attempt."""
    included_steps: int
    """In rows of metrics: without a reason in `Steps.excluded`."""
    lost_steps: int = 0
    """Without a time: their device events were lost or a CUDA graph was captured."""
    included_seconds: float
    """Of all included steps."""
    stage_seconds: Mapping[str, float]
    """Of the included steps; empty if unknown."""
    other_seconds: Mapping[str, float] = field(default_factory=dict)
    """"generation" and "rewards", parts of the stage `other` in TRL's trainers."""
    span_seconds: Mapping[str, float] = field(default_factory=dict)
    """Outside of steps: evaluation, checkpoint."""
    span_counts: Mapping[str, int] = field(default_factory=dict)
    """Steps after which there were spans: evaluation, checkpoint. Two files saved after one step count once."""
    wall_seconds: Mapping[str, float] = field(default_factory=dict)
    """Parts of the fit's wall time, which they sum to: startup, first_step, flop_counting, steps, evaluation,
    checkpoint, own_work, other, and "suspended" if the process was."""
    samples: int | None
    """In all steps of this attempt, like `tokens`."""
    tokens: int | None
    included_samples: int | None
    """In the included steps. Rates are computed from this, `included_tokens` and `included_useful_tokens`."""
    included_tokens: int | None
    included_useful_tokens: int | None
    total_samples: int | None
    """In all attempts so far. Checkpoints carry `total_samples` and `total_tokens` to the next."""
    total_tokens: int | None
    findings: tuple[Finding, ...] = ()
    """Causes that limit the run, the most expensive first. Empty: nothing is wrong, or too little is known."""
    failure: str | None = None
    """Why measuring stopped early."""
    flops: FlopsSummary | None = None
    gc: GcSummary | None = None
    stalls: StallSummary | None = None
    memory: MemorySummary | None = None
    energy: EnergySummary | None = None
    """Of the device. None: no energy counter, several processes on the device, or a short fit."""
    cpu: CpuSummary | None = None
    stragglers: StragglerSummary | None = None
    profiles: tuple[Profile, ...] = ()
    """Of this rank, with at most three modules each, and without operations, copies and lines of the program."""

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
        """Per included step."""
        return self.included_seconds / self.included_steps if self.included_steps else None

    @property
    def joules_per_step(self) -> float | None:
        """Of this rank's device."""
        return self.energy.joules / self.energy.steps if self.energy is not None and self.energy.steps else None

    @property
    def joules_per_token(self) -> float | None:
        """Of this rank's device, per token of its included steps."""
        if self.joules_per_step is None or not self.included_tokens:
            return None
        return self.joules_per_step * self.included_steps / self.included_tokens

    @property
    def long_enough(self) -> bool:
        """False: findings from the times of so short a fit may be due to chance."""
        return self.included_steps >= ENOUGH_STEPS and self.wall_seconds.get("steps", 0.0) >= ENOUGH_SECONDS

    _repr_html_: ClassVar[Callable[["Summary"], str | None]]
    """The card, for a summary on the last line of a Jupyter cell."""


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
