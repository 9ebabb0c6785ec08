"""Facts and measured times, on which the rules of advice base their decisions."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import NamedTuple

from perf_callbacks.advice.compilations import Compilations
from perf_callbacks.flops.peaks.peak_rates import Peaks
from perf_callbacks.kernel.engine.account import STARTUP, STEPS
from perf_callbacks.kernel.fit.rarer import Rarer
from perf_callbacks.kernel.records.fit_records import Finding, Summary
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.memory.device_readings import DeviceReadings
from perf_callbacks.memory.use import MemoryUse

WAITING = frozenset({"data", "communication"})
"""Stages in which the training thread mostly waits, and needs no CPU."""

TRAINERS = frozenset({"transformers", "lightning"})
"""Integrations whose framework runs code of its own between the stages of a step."""

WORTH = 0.01
"""A finding is reported only if its remedy could save at least this share of the run."""

INTERRUPTED = (0.75, 1.4)
"""Least and most seconds saved per second of avoided interruptions, such as logging.

The steps after an interruption are slower too, so the saving may exceed the time of the interruptions. In
`benchmarks/promises.py`, 39 of 42 programs saved 0.77 to 1.39 s for each second of avoided interruptions. Three
programs of `benchmarks/promises.py` saved 0.45, 0.47 and 2.3 s: see `docs/verdict-evidence.md`.
"""

DEVIATIONS = 1.96
"""Half the width of a 95 % confidence interval, in standard errors."""


class Drift(NamedTuple):
    """Growth of the step time in the course of a fit."""

    first: float
    """Mean seconds of a step in the first quarter of the steps."""
    last: float
    """Mean seconds of a step in the last quarter of the steps."""
    share: float
    """Part of the time of all steps that would be saved if all steps were as short as in the first quarter."""
    stage: str
    """Stage whose time grew most."""


class SlowCode(NamedTuple):
    """Slow code of the program in one stage: its busiest line, and its number of samples."""

    line: str
    """Line with the most samples."""
    looks: int
    """Number of samples in slow code of the stage."""
    of: int
    """Number of samples in the stage."""
    of_all: int
    """Number of samples in all stages."""
    in_loop: bool = False
    """True: the function of `line` runs in several stages, so the function may contain the training loop."""

    @property
    def part(self) -> float:
        return self.looks / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of `part`, after Wilson.

        >>> [round(end, 2) for end in SlowCode("train.py:31 `loss_of`", 5, 6, 10).interval]
        [0.44, 0.97]
        """
        z2 = DEVIATIONS * DEVIATIONS
        spread = DEVIATIONS * math.sqrt(self.looks * (self.of - self.looks) / self.of + z2 / 4)
        middle, whole = self.looks + z2 / 2, self.of + z2
        return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Facts about a fit. A field is None if its value is unknown."""

    integration: str = "loop"
    options: Mapping[str, str] = field(default_factory=dict)
    """Arguments of the trainer that have an effect in this program, each with the name of the class that takes it."""
    rarer: Mapping[str, Rarer] = field(default_factory=dict)
    """How to make evaluations and checkpoints rarer, by the kind of span."""
    checkpointing: str | None = None
    """Beginning of the names of the methods with which the model turns its checkpointing on and off.

    None means that the model has no such methods, or that other code checkpoints.
    """
    resizable: bool = False
    """True: the model has the method `resize_token_embeddings`."""
    accelerator: str | None = None
    """Kind of accelerator in use, or None without an accelerator."""
    cpus: int | None = None
    """Number of CPUs that the process may keep busy: its share of the job's CPUs on this machine."""
    memory_available: int | None = None
    """Bytes of host memory that the process may still take."""
    local_ranks: int = 1
    """Number of processes of the job on this machine."""
    ranks_on_cpus: int = 1
    """Number of processes of the job that share the CPUs on which this process may run."""
    workers: int | None = None
    """Number of worker processes of the training loader, or None if the loader is no `DataLoader`."""
    iterable: bool = False
    """True: each worker would load all samples of the data set, unless the data set divides them."""
    prefetch: int = 2
    """Number of batches that each worker loads in advance."""
    batch_bytes: int | None = None
    """Size of the largest batch in bytes."""
    batch_lengths: int = 0
    """Number of distinct sequence lengths of batches, or 0 if unknown."""
    calm_share: float | None = None
    """Share of calm groups of steps. A group has as many steps as there are workers.

    A group is calm if waits for data took less than the share `loaded_batches.STARVED` of the group's time.
    """
    burst_seconds: float = 0.0
    """Mean wait for data in a group of steps that isn't calm, in seconds."""
    persistent: bool = False
    """True: the workers persist from epoch to epoch."""
    epochs: int = 0
    """Number of epochs whose first step was measured. The fit's first epoch doesn't count."""
    epoch_wait_seconds: float = 0.0
    """Wait for the first batch of each epoch in seconds, averaged over all steps of the fit.

    Only the epochs that `epochs` counts are included.
    """
    epoch_wait_in_rows: float = 0.0
    """Like `epoch_wait_seconds`, but only with waits in measured steps."""
    data_line: str | None = None
    """Busiest line of a function that appears in at least half of the samples of the stage `data`."""
    host_line: str | None = None
    """Busiest line in the stage `other`, found in the same way as `data_line`."""
    first_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each stage in the first step. The stage `other` includes the startup."""
    first_line: str | None = None
    """Busiest line of the first step, found in the same way as `data_line`."""
    slow_code: Mapping[str, SlowCode] = field(default_factory=dict)
    """Slow code of the program in forward, backward and optimizer, by stage."""
    host_wait: SlowCode | None = None
    """Samples in the stage `other` in which the program waited and needed no CPU, with the line of most of them."""
    collect_line: str | None = None
    """Line of the program whose calls of `gc.collect()` took longest, or None if the program makes no such calls."""
    collect_seconds: float = 0.0
    """Seconds of all calls of `gc.collect()`."""
    attention: str | None = None
    """Name of the attention implementation in the model's configuration, such as "eager"."""
    sdpa: bool = False
    """True: the model could use `scaled_dot_product_attention`."""
    optimizer: str | None = None
    """Class name of an optimizer of torch that can be fused, if this saves time."""
    fused: bool = False
    """True: the optimizer updates many tensors at once, because `fused` or `foreach` is set."""
    tensors: int = 0
    """Number of tensors that the optimizer updates."""
    elements: float = 0.0
    """Mean number of elements of the tensors that the optimizer updates."""
    threads: int = 1
    """Number of CPU threads that an operation uses."""
    threads_code: str = "OMP_NUM_THREADS={}"
    """Code that sets the number of threads."""
    log_every: int | None = None
    """Number of steps from one log line of the trainer to the next."""
    gc: str = "sync"
    """Value of the setting `gc`."""
    ddp: bool = False
    """True: the model is a `DistributedDataParallel` of several ranks."""
    nan_filter: bool = False
    """True: the trainer checks each loss for NaN (`logging_nan_inf_filter`)."""
    weights: Mapping[tuple[int, ...], int] = field(default_factory=dict)
    """Number of parameter tensors of each shape with two or more dimensions."""
    vocabulary: int | None = None
    """Size of the model's vocabulary."""
    head: int | None = None
    """Size of an attention head."""
    device_type: str = "cpu"
    """Torch's name for the kind of device, such as "cuda"."""
    half: str | None = None
    """The format "bf16" or "fp16" if the device multiplies it faster than float32, or else None."""
    tensor_cores: bool = False
    """True: the device has NVIDIA's tensor cores, which need suitable sizes of matrices."""
    multiprocessors: int | None = None
    """Number of the device's multiprocessors."""
    tf32: bool = False
    """True: matrix products of float32 tensors use TF32."""
    tf32_possible: bool = False
    """True: the device can multiply float32 matrices in TF32."""
    peaks: Peaks | None = None
    """Published peaks of the device."""
    clocks: str | None = None
    """Shell command that shows the device's clocks."""
    blocking: str | None = None
    """Environment variable that makes each kernel launch wait for the device, or None if it is not set."""
    anomalies: bool = False
    """True: autograd's anomaly detection is on."""
    memory: MemoryUse | None = None
    """Memory use of the fit, as far as known."""
    readings: DeviceReadings | None = None
    """Readings of the device's clocks, as far as known."""
    deterministic: bool = False
    """True: torch uses deterministic algorithms only."""
    uncached: str | None = None
    """Environment variable that turns off the cache of device memory, or None if it is not set."""
    expandable: str | None = None
    """Setting that lets segments of device memory grow, or None if it is already on or not available."""
    free_cpus: float | None = None
    """Mean number of idle CPUs among the CPUs that the process may keep busy."""
    left_cpus: float | None = None
    """Number of the process's CPUs that other programs leave free.

    A CPU that another program waits for doesn't count as free.
    """
    idle_share: float | None = None
    """Share of the fit in which the training thread waited for a disk, a device or a process, and needed no CPU."""
    starved_share: float | None = None
    """Share of the fit in which the training thread was ready to run, and had no CPU."""
    quota_reached: bool = False
    """True: the container's CPU quota stopped the threads for a long time."""
    update_part: float | None = None
    """Part of the stage `optimizer` that the optimizer's `step` takes. Clipping and `zero_grad` take the other part."""
    compilations: Compilations | None = None
    """Compilations of torch.compile since the fit began."""
    drift: Drift | None = None
    """Growth of the step time in the course of the fit, or None if steps didn't become longer."""
    widths: Mapping[str, float] = field(default_factory=dict)
    """For each stage: the relative error of the stage's share of the step time.

    The error is half the width of the share's 95 % confidence interval, divided by the share.
    """
    work: Flops | None = None
    """FLOPs of the last counted step."""
    profiles: tuple[Profile, ...] = ()
    """Profiles that were taken on this rank during the fit."""

    def option(self, name: str, value: object) -> str | None:
        """Return code that sets an argument of the trainer, or None if it would have no effect in this program."""
        return f"{self.options[name]}({name}={value})" if name in self.options else None

    @property
    def compiled(self) -> bool:
        """True: torch.compile compiled code during the fit, or the model or optimizer is compiled."""
        return (self.work is not None and self.work.compiled) or bool(self.compilations and self.compilations.number)


class Measured:
    """Times of a whole fit."""

    def __init__(self, summary: Summary, facts: Facts = Facts()) -> None:
        self.summary, self._facts = summary, facts
        wall = summary.wall_seconds
        self.seconds = sum(wall.values()) - wall.get(STARTUP, 0.0)
        """Wall time of the fit without its startup. A share of the run is always a share of `seconds`."""
        self.steps_seconds = wall.get(STEPS, 0.0)
        self.known = self.seconds > 0 and summary.long_enough and bool(summary.stage_seconds)
        """True: enough steps were measured, and their stages are known."""

    @property
    def step_seconds(self) -> float:
        return self.summary.step_time or 0.0

    def stage(self, name: str) -> float:
        """Return the mean seconds per step of a stage, or 0 if the stage was never entered."""
        return self._per_step(self.summary.stage_seconds.get(f"{name}_time", 0.0))

    def model(self, name: str) -> float:
        """Return the mean seconds per step of a stage without its slow code. Another rule reports the slow code."""
        slow = self._facts.slow_code.get(name)
        return self.stage(name) * (1 - slow.part if slow is not None else 1.0)

    def with_cpu(self, share: float) -> float:
        """Estimate the share of the run that would remain if the training thread had always had a CPU."""
        if not self._facts.starved_share or not self.summary.included_seconds or not self.steps_seconds:
            return share
        waits = WAITING if self._facts.workers else {"communication"}  # without workers, the thread loads batches
        waited = sum([self.summary.stage_seconds.get(f"{name}_time", 0.0) for name in waits])
        working = self.steps_seconds * (1 - waited / self.summary.included_seconds)
        return share * max(0.0, 1 - self._facts.starved_share * self.seconds / working) if working > 0 else share

    def low(self, share: float, *stages: str) -> float | None:
        """Return the lower end of the 95 % interval of a share, or None after too few steps.

        `share` is a part of the step time. `stages` are the stages that contain this part.
        """
        widths = self._facts.widths
        return share * max(0.0, 1 - max([widths[name] for name in stages])) if widths else None

    def part(self, name: str) -> float:
        """Return the mean seconds per step of a named part of the stage `other`, or 0 without such a part."""
        return self._per_step(self.summary.other_seconds.get(name, 0.0))

    @property
    def computing(self) -> float:
        return sum(map(self.stage, ("forward", "backward", "optimizer")))

    @property
    def unnamed(self) -> float:
        """Mean seconds per step of the stage `other`, without its named parts."""
        return max(0.0, self.stage("other") - sum(map(self.part, self.summary.other_seconds)))

    def share(self, seconds_per_step: float) -> float:
        if not self.step_seconds or not self.seconds:
            return 0.0
        return seconds_per_step / self.step_seconds * self.steps_seconds / self.seconds

    def _per_step(self, seconds: float) -> float:
        return seconds / self.summary.included_steps if self.summary.included_steps else 0.0


def interrupting(share: float, most: float = INTERRUPTED[1]) -> tuple[float, float]:
    """Return the least and the largest share of the run that rarer interruptions save.

    Args:
        share: Share of the run that the avoided interruptions take.
        most: Largest saving, relative to the time of the avoided interruptions.

    >>> [round(end, 3) for share in (0.2, 0.95) for end in interrupting(share)]
    [0.15, 0.28, 0.712, 0.975]
    """
    return INTERRUPTED[0] * share, min(most * share, (share + 1) / 2)


Rule = Callable[[Facts, Measured | None], Finding | None]


def timed(rule: Callable[[Facts, Measured], Finding | None]) -> Rule:
    """Wrap a rule, so that it finds nothing until enough steps are measured."""

    @wraps(rule)
    def applied(facts: Facts, measured: Measured | None) -> Finding | None:
        return rule(facts, measured) if measured is not None and measured.known else None

    return applied


def finding(
    cause: str,
    share: float | None,
    evidence: str,
    remedy: str,
    *,
    low: float | None = None,
    line: str | None = None,
) -> Finding | None:
    """Return a finding, or None if the share is too small to be worth a change.

    Args:
        cause: Name of the cause.
        share: Share of the run that the change could save, or None if unknown.
        evidence: What was measured.
        remedy: The change.
        low: Lower end of the share's interval, or None if unknown.
        line: Line of the program that the evidence names, or None.
    """
    if share is not None and share < WORTH:
        return None
    share = None if share is None else min(share, 1.0)
    return Finding(cause=cause, share=share, low=low, evidence=evidence, remedy=remedy, line=line)
