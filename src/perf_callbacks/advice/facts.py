"""Facts and times by which the rules decide. Facts about the fit are read once; times cover the whole fit."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import NamedTuple, Protocol

from perf_callbacks.kernel.engine.account import STARTUP, STEPS
from perf_callbacks.kernel.process.compilations import Compilations
from perf_callbacks.kernel.records.fit_records import Finding, Summary
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.memory.device_readings import DeviceReadings
from perf_callbacks.memory.use import MemoryUse

WAITING = frozenset({"data", "communication"})
"""Stages in which the training thread mostly waits, and needs no CPU."""

WORTH = 0.01
"""Least share of the run that a finding must be able to save."""

INTERRUPTED = (0.75, 1.4)
"""Least and most time that is saved if evaluations, logging or other code run rarely, relative to their own time.

Steps that follow an interruption are slower, too. In `benchmarks/promises.py`, 39 of 42 programs saved 0.77 to 1.39
times this time, and the others saved 0.45, 0.47 and 2.3 times: see `docs/verdict-evidence.md`.
"""

DEVIATIONS = 1.96
"""Standard errors in half a 95 % interval."""


class MachineFacts(Protocol):
    """The part of the environment that rules use."""

    @property
    def accelerator(self) -> str | None:
        """Kind of accelerator in use; None: no accelerator."""
        ...

    @property
    def cpus(self) -> int | None:
        """Number of CPUs that the process may keep busy: its share of the job's CPUs on this machine."""
        ...

    @property
    def memory_available(self) -> int | None:
        """Bytes of host memory that the process may still take."""
        ...

    @property
    def local_world_size(self) -> int:
        """Number of processes of the job on this machine."""
        ...


class Drift(NamedTuple):
    """Steps that became longer in the course of a fit."""

    first: float
    """Mean seconds of a step in the first quarter of the steps."""
    last: float
    """Mean seconds of a step in the last quarter."""
    share: float
    """Part of the time of all steps that would be saved if all steps were as short as in the first quarter."""
    stage: str
    """Stage that grew most."""


class SlowCode(NamedTuple):
    """Slow code of the program in a stage: number of samples, and the most frequent line."""

    line: str
    """Line with the most samples."""
    looks: int
    """Samples in slow code."""
    of: int
    """Samples in the stage."""
    of_all: int
    """Samples in all stages."""
    in_loop: bool = False
    """True: the line's function has samples in other stages too, as the function with the training loop has."""

    @property
    def part(self) -> float:
        """Part of the stage's time."""
        return self.looks / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of `part`, by Wilson.

        >>> [round(end, 2) for end in SlowCode("train.py:31 `loss_of`", 5, 6, 10).interval]
        [0.44, 0.97]
        """
        z2 = DEVIATIONS * DEVIATIONS
        spread = DEVIATIONS * math.sqrt(self.looks * (self.of - self.looks) / self.of + z2 / 4)
        middle, whole = self.looks + z2 / 2, self.of + z2
        return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Facts about a fit. None: unknown."""

    integration: str = "loop"
    workers: int | None = None
    """Worker processes of the training loader; None: the loader is no `DataLoader`."""
    prefetch: int = 2
    """Batches that each worker loads in advance."""
    batch_bytes: int | None = None
    """Size of the largest batch."""
    batch_lengths: int = 0
    """Number of distinct lengths of batches. 0: unknown."""
    calm_share: float | None = None
    """Share of groups that hardly waited for data. A group has a step per worker. None: too few groups or waits."""
    burst_seconds: float = 0.0
    """Mean seconds that each of the other groups waited for data."""
    persistent: bool = False
    """True: the workers persist from epoch to epoch."""
    epochs: int = 0
    """Number of epochs whose first step was measured, without the fit's first epoch."""
    epoch_wait_seconds: float = 0.0
    """Seconds of waiting for the first batches of these epochs, divided by the number of all steps of the fit."""
    epoch_wait_in_rows: float = 0.0
    """The part of `epoch_wait_seconds` in steps that count in rows. Also divided by the number of all steps."""
    data_line: str | None = None
    """Busiest line of the function in at least half of the samples of the stage `data`. None: no such function."""
    host_line: str | None = None
    """Busiest line, found in the same way, in the stage `other`."""
    first_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the first step by stage. The startup is part of the stage `other`."""
    first_line: str | None = None
    """Busiest line of the first step, found in the same way."""
    slow_code: Mapping[str, SlowCode] = field(default_factory=dict)
    """Slow code of the program in forward, backward and optimizer, by stage."""
    collect_line: str | None = None
    """Line of the program whose calls of `gc.collect()` took longest; None: the calls come from elsewhere."""
    collect_seconds: float = 0.0
    """Seconds of all calls of `gc.collect()`."""
    attention: str | None = None
    """Implementation of attention, by its name in the model's configuration."""
    sdpa: bool = False
    """True: the model could use `scaled_dot_product_attention`."""
    optimizer: str | None = None
    """Class of the optimizer; None: the optimizer is not torch's, or is SGD without momentum."""
    fused: bool = False
    """True: the optimizer updates many tensors at once, by `fused` or `foreach`."""
    tensors: int = 0
    """Number of tensors that the optimizer updates."""
    elements: float = 0.0
    """Mean number of elements of these tensors."""
    threads: int = 1
    """CPU threads per operation."""
    log_every: int | None = None
    """Steps from one log line of the trainer to the next."""
    gc: str = "sync"
    """The setting `gc`."""
    ddp: bool = False
    """True: the model is a `DistributedDataParallel` of several ranks."""
    nan_filter: bool = False
    """True: the trainer checks each loss for NaN (`logging_nan_inf_filter`)."""
    weights: Mapping[tuple[int, ...], int] = field(default_factory=dict)
    """Number of weights with two or more dimensions, by shape."""
    vocabulary: int | None = None
    """Number of tokens that the model knows."""
    head: int | None = None
    """Size of an attention head."""
    device_type: str = "cpu"
    """Name of the device's kind in torch."""
    half: str | None = None
    """16-bit format that the device multiplies faster than float32: "bf16" or "fp16". None: unknown, or none."""
    tensor_cores: bool = False
    """True: the device has NVIDIA's tensor cores, for which sizes of products matter."""
    multiprocessors: int | None = None
    """Number of the device's multiprocessors."""
    tf32: bool = False
    """True: products of float32 use TF32."""
    tf32_possible: bool = False
    """True: the device can multiply float32 numbers as TF32."""
    clocks: str | None = None
    """Command that shows the device's clocks. None: unknown."""
    blocking: str | None = None
    """Environment variable that makes each kernel launch wait for the device. None: not set."""
    anomalies: bool = False
    """True: autograd's anomaly detection is on."""
    memory: MemoryUse | None = None
    """Memory of the fit, as far as known."""
    readings: DeviceReadings | None = None
    """Clocks of the device, as far as known."""
    deterministic: bool = False
    """True: torch uses deterministic algorithms only."""
    uncached: str | None = None
    """Environment variable that turns off the cache of device memory. None: not set."""
    expandable: str | None = None
    """Setting that makes segments of device memory grow. None: already on, or not available."""
    free_cpus: float | None = None
    """Mean number of idle CPUs among the CPUs that the process may keep busy."""
    left_cpus: float | None = None
    """Number of the process's CPUs that other programs leave. CPU time that these programs wait for counts as used."""
    idle_share: float | None = None
    """Share of the fit in which the training thread waited for a disk, a device or a process, and needed no CPU."""
    starved_share: float | None = None
    """Share of the fit in which the training thread was ready to run, and had no CPU."""
    quota_reached: bool = False
    """True: the CPU quota of the container stopped its threads for long."""
    update_part: float | None = None
    """Part of the stage `optimizer` that calls of the optimizer's `step` take, without clipping and `zero_grad`."""
    compilations: Compilations | None = None
    """Compilations of torch.compile since the fit began."""
    drift: Drift | None = None
    """Growth of the step time in the course of the fit. None: steps became no longer."""
    widths: Mapping[str, float] = field(default_factory=dict)
    """By stage, half the width of the 95 % interval of the stage's share of step time, as a part of this share."""
    work: Flops | None = None
    """FLOPs of the last counted step."""
    profiles: tuple[Profile, ...] = ()
    """Profiles of steps of this fit, on this rank."""

    @property
    def compiled(self) -> bool:
        """True: torch.compile compiled something, or the counted step belongs to a compiled model or optimizer."""
        return (self.work is not None and self.work.compiled) or bool(self.compilations and self.compilations.number)


class Measured:
    """Times of a whole fit."""

    def __init__(self, summary: Summary, facts: Facts = Facts()) -> None:
        self.summary, self._facts = summary, facts
        wall = summary.wall_seconds
        self.seconds = sum(wall.values()) - wall.get(STARTUP, 0.0)
        """The fit's wall time after startup. All shares are shares of this time."""
        self.steps_seconds = wall.get(STEPS, 0.0)
        self.known = self.seconds > 0 and summary.long_enough and bool(summary.stage_seconds)
        """True: enough steps were measured, and their stages are known."""

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a measured step."""
        return self.summary.step_time or 0.0

    def stage(self, name: str) -> float:
        """Return the mean seconds of a stage per step; 0 if the stage was never entered."""
        return self._per_step(self.summary.stage_seconds.get(f"{name}_time", 0.0))

    def model(self, name: str) -> float:
        """Return the seconds of a stage without the slow code of the program, which has a finding of its own."""
        slow = self._facts.slow_code.get(name)
        return self.stage(name) * (1 - slow.part if slow is not None else 1.0)

    def with_cpu(self, share: float) -> float:
        """Return the share that work of the training thread would have if a CPU had always been free."""
        if not self._facts.starved_share or not self.summary.included_seconds or not self.steps_seconds:
            return share
        waits = WAITING if self._facts.workers else {"communication"}  # without workers, the thread loads batches
        waited = sum([self.summary.stage_seconds.get(f"{name}_time", 0.0) for name in waits])
        working = self.steps_seconds * (1 - waited / self.summary.included_seconds)
        return share * max(0.0, 1 - self._facts.starved_share * self.seconds / working) if working > 0 else share

    def low(self, share: float, *stages: str) -> float | None:
        """Return the lower end of the 95 % interval of a share that is due to these stages. None: too few steps."""
        widths = self._facts.widths
        return share * max(0.0, 1 - max([widths[name] for name in stages])) if widths else None

    def part(self, name: str) -> float:
        """Return the mean seconds per step of a named part of the stage `other`; 0 without such a part."""
        return self._per_step(self.summary.other_seconds.get(name, 0.0))

    @property
    def computing(self) -> float:
        """Mean seconds per step of forward, backward and optimizer."""
        return sum(map(self.stage, ("forward", "backward", "optimizer")))

    @property
    def unnamed(self) -> float:
        """Mean seconds per step of the stage `other`, without its named parts."""
        return max(0.0, self.stage("other") - sum(map(self.part, self.summary.other_seconds)))

    def share(self, seconds_per_step: float) -> float:
        """Return the share of the fit's time that these seconds per step take."""
        if not self.step_seconds or not self.seconds:
            return 0.0
        return seconds_per_step / self.step_seconds * self.steps_seconds / self.seconds

    def _per_step(self, seconds: float) -> float:
        return seconds / self.summary.included_steps if self.summary.included_steps else 0.0


def interrupting(share: float, most: float = INTERRUPTED[1]) -> tuple[float, float]:
    """Return the least and the largest share of the run that rarer interruptions save.

    Args:
        share: Share of the run that the avoided interruptions take.
        most: Most time that is saved, relative to the time of these interruptions.

    >>> [round(end, 3) for share in (0.2, 0.95) for end in interrupting(share)]
    [0.15, 0.28, 0.712, 0.975]
    """
    return INTERRUPTED[0] * share, min(most * share, (share + 1) / 2)


Rule = Callable[[MachineFacts, Facts, Measured | None], Finding | None]


def timed(rule: Callable[[MachineFacts, Facts, Measured], Finding | None]) -> Rule:
    """Return a rule that finds nothing until enough steps are measured."""

    @wraps(rule)
    def applied(machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
        return rule(machine, facts, measured) if measured is not None and measured.known else None

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
    """Return a finding. None: the share is too small to be worth a change.

    Args:
        cause: Name of the cause.
        share: Share of the run that the change could save; None: unknown.
        evidence: What was measured.
        remedy: The change.
        low: Lower end of the share's interval; None: unknown.
        line: Slowest line of the program, which the evidence names too; None: unknown.
    """
    if share is not None and share < WORTH:
        return None
    share = None if share is None else min(share, 1.0)
    return Finding(cause=cause, share=share, low=low, evidence=evidence, remedy=remedy, line=line)
