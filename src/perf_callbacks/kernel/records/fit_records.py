"""Records of a run, frozen.

`perf_callbacks.kernel.records.codec` encodes records as lines of a journal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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

TRIED = "on trial"
"""Status of a checklist item on trial, whose benefit is not known yet."""

SCHEDULED, STARTUP = "schedule", "startup"
"""Reasons why the checklist collects garbage."""

Number = int | float


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """First record of each fit and attempt: what runs where, with which settings. `t` counts from here."""

    run_id: str
    """Identifies the run: new for each fit, kept when a fit is resumed."""
    attempt: int
    """Number of the attempt: 1 for the first start, plus 1 for each resume."""
    step: int
    """Optimizer steps done before this attempt."""
    rank: int
    world_size: int
    device: str
    """Name of the measured device, such as "cpu" or "NVIDIA H200"."""
    tensor_cores: bool = False
    """True: the device has NVIDIA's tensor cores."""
    devices: int = 1
    """Number of devices that the rank drives. If there are several, the stages are those of the first."""
    data_parallel: int | None = None
    """Number of groups of ranks that share their samples. None: unknown, or an older version wrote the journal."""
    timeline: str
    """Clock behind steps and stages: "host" or "device"."""
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
    """The script, or the module after `-m`. None, here and in the next seven fields: unknown, or an older version wrote
    the journal."""
    command_line: str | None = None
    """Program and arguments, at most 4,096 characters. "***" stands for values that look like secrets."""
    directory: str | None = None
    """Working directory at the start."""
    host: str | None = None
    job_id: str | None = None
    """Id of the job by Slurm, LSF, PBS, Flux or torchrun."""
    model: str | None = None
    """Class of the model whose FLOPs are counted, without wrappers such as DistributedDataParallel."""
    parameters: int | None = None
    """Number of parameters of that model, including the shards on other ranks."""
    batch: int | None = None
    """Samples per batch, as the loader says."""
    started_unix: float
    """Wall clock at the start. The time between attempts is computed from this field only without `uptime_seconds`."""
    process_seconds: float | None = None
    """Seconds from the start of the process to this record, in the first fit of a process. None: unknown, as in a
    notebook."""
    restore_seconds: float | None = None
    """Seconds in which the framework read the checkpoint, before this record. None: no checkpoint, or unknown."""
    boot_id: str | None = None
    """Id of the machine's boot. None, here and in the next field: the system has none."""
    uptime_seconds: float | None = None
    """Seconds since that boot: the clock that attempts on a machine have in common."""
    resumed_unix: float | None = None
    """`started_unix` of the attempt that saved the checkpoint. None: not resumed, or unknown."""
    last_sign_unix: float | None = None
    """Wall clock at the last write to this journal, or to the summary beside it, before this attempt. None: there was
    no journal."""
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True, slots=True)
class Checklist:
    """Item of the startup checklist. An item may have several records, of which the last is valid."""

    item: str
    status: str
    """One of applied, on trial, already so, advised, not applicable, skipped, failed."""
    before: str | None = None
    """State before the item. None, in this field and the next two: not applicable."""
    after: str | None = None
    """State after the item, or advised by the item."""
    why: str | None = None
    saved_seconds: tuple[float, float, float] | None = None
    """Seconds per mean step that a proven item saves: lower end of the 99.9 % interval, estimate, upper end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Amounts:
    """Amounts that the model processed. None: unknown."""

    samples: int | None = 0
    tokens: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Up to 256 optimizer steps, as columns of equal length. The column of an unknown stage is empty."""

    step: tuple[int, ...]
    step_time: tuple[float | None, ...]
    """Seconds of each step. Here and in the columns of stages, None stands for a step without times of the device."""
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
    """Reason why a step is in no row: "first", "restart", "counted", "recounted", "evaluation", "checkpoint", "lost",
    "captured", "profiled", "interrupted"; None: the step is in a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Metrics that were logged, and their step."""

    step: int
    metrics: Mapping[str, Number]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gc:
    """One garbage collection."""

    step: int
    """Optimizer step of the collection."""
    stage: str
    """Stage of the collection, "aside" in evaluations and checkpoints, or "elsewhere" in other threads."""
    generation: int
    start: float
    seconds: float
    collected: int
    automatic: bool
    """False: a call of `gc.collect`."""
    ours: str | None = None
    """Reason why the checklist collected: "schedule", or "startup" for its first full collection. None: Python or the
    program collected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Evaluation or checkpoint: time that belongs to no step."""

    kind: str
    """One of evaluation, checkpoint."""
    step: int
    """Number of optimizer steps done when the span began."""
    start: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Cause that limits a run, and its remedy. Written at the end of a fit."""

    cause: str
    """One of stall, cpu, threads, data, host, sync, recompute, attention, optimizer, gc, straggler, uneven, drift,
    evaluation, checkpoint, startup, memory, precision, compile, shape, throttle, copy, communication."""
    share: float | None
    """Part of the fit's wall time after startup that the change could save, from 0 to 1. For the cause startup: time
    until the callback was set up, as a part of all wall time. None: unknown."""
    low: float | None = None
    """Lower end of `share`, by the variation between steps and the error of estimates. None: unknown, or an older
    journal."""
    evidence: str
    remedy: str
    """Line to write, or action to take."""
    line: str | None = None
    """Slowest line of the program, with its function, such as "train.py:55 `Snippets.encode`". None: unknown, or an
    older journal."""
    measured: tuple[float, float, float] | None = None
    """Speedup that `perf-callbacks try` measured for the remedy: lower end of the 95 % interval, estimate, upper end.
    None: no trial of this program is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Optimizer steps of all ranks, combined. In rank 0's journal."""

    first_step: int
    last_step: int
    """Last step by the trainer's count, inclusive, like `first_step`."""
    steps: int
    """Number of steps that the amounts below cover: the steps of rows, and steps that are in no row only because of a
    FLOP count after the first count ("recounted")."""
    ranks: int
    """Number of ranks of the job."""
    missing: int = 0
    """Number of ranks whose part was late. If above 0, the amounts of the job are unknown."""
    missing_ranks: tuple[int, ...] = ()
    """Late ranks, in order; at most 64."""
    seconds: float
    """Time of the slowest rank, which is the time of the job."""
    samples: int | None
    """Samples of all ranks. The next two fields also cover all ranks. None: unknown."""
    tokens: int | None
    useful_tokens: int | None
    model_flops: int | None = None
    """Sum of the counts of all ranks. `hardware_flops` is such a sum too."""
    hardware_flops: int | None = None
    asks: Mapping[str, int] = field(default_factory=dict)
    """Minimum over ranks of each value that ranks agree on, by name."""
    holds: Mapping[str, int] = field(default_factory=dict)
    """By name: the step from whose end on all ranks use the agreed value in `asks`."""
    job: Mapping[str, float] = field(default_factory=dict)
    """Use of the machines by all ranks since the previous window, by the names of the metrics `perf/job_…`. Empty:
    unknown, or an older version wrote the journal."""
    by_rank: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """The same figures of each rank, by the names of the `use` record, and `cpu_cores`, the CPU cores that a rank keeps
    busy. In jobs of up to 64 ranks. None: unknown."""


ENOUGH_STEPS, ENOUGH_SECONDS = 5, 10.0
"""Fewest measured steps of a fit with a verdict, and fewest seconds of its steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Figures of a fit, so far or at its end: common fields, and a part per feature. None: unknown, or feature off."""

    run_id: str
    attempt: int
    step: int
    """The trainer's count of optimizer steps."""
    steps: int
    """Optimizer steps of this attempt."""
    included_steps: int
    """Steps in rows: all steps without a reason in `Steps.excluded`."""
    lost_steps: int = 0
    """Steps without a time: their device events were lost, or a graph was captured."""
    included_seconds: float
    """Duration of the included steps."""
    stage_seconds: Mapping[str, float]
    """Seconds of each stage in the included steps; empty if unknown."""
    other_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of parts of the stage `other` that TRL's trainers name: generation, rewards."""
    span_seconds: Mapping[str, float] = field(default_factory=dict)
    """Time outside of steps, by kind."""
    span_counts: Mapping[str, int] = field(default_factory=dict)
    """Number of evaluations and checkpoints."""
    wall_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each part of the fit's wall time: startup, first_step, flop_counting, steps, evaluation, checkpoint,
    own_work, other. The parts sum to the wall time."""
    samples: int | None
    """Samples of all steps of this attempt. `tokens` counts the same steps."""
    tokens: int | None
    included_samples: int | None
    """Samples of the included steps. This field and the next two are used for rates."""
    included_tokens: int | None
    included_useful_tokens: int | None
    total_samples: int | None
    """Samples of all attempts so far. Checkpoints carry this number and `total_tokens` from attempt to attempt."""
    total_tokens: int | None
    proofs: Mapping[str, str] = field(default_factory=dict)
    """Verdicts on the checklist items that were on trial."""
    findings: tuple[Finding, ...] = ()
    """Causes that limit the run, the most expensive first. Empty: nothing is wrong, or too little is known."""
    failure: str | None = None
    """Reason why measuring stopped early."""
    flops: FlopsSummary | None = None
    gc: GcSummary | None = None
    stalls: StallSummary | None = None
    memory: MemorySummary | None = None
    energy: EnergySummary | None = None
    """None: the device counts no energy, several processes share the device, or the fit is short."""
    cpu: CpuSummary | None = None
    stragglers: StragglerSummary | None = None
    profiles: tuple[Profile, ...] = ()
    """The rank's `profile` records without operations, copies and lines, and with three modules at most."""

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
        """HFU without the masked part of causal attention. None as in `FlopsSummary.unmasked_share`."""
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
        """True: the fit is long enough for findings that depend on times. In shorter fits, shares are due to chance."""
        return self.included_steps >= ENOUGH_STEPS and self.wall_seconds.get("steps", 0.0) >= ENOUGH_SECONDS

    def _repr_html_(self) -> str | None:
        """Return the card as HTML: Jupyter calls this method if a summary is the last line of a cell."""
        from perf_callbacks.report import notebook_card  # noqa: PLC0415 records import reports for this alone

        return notebook_card.html(self)


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
