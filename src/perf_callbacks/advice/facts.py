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
from perf_callbacks.kernel.records.shares import WORTH
from perf_callbacks.memory.device_readings import DeviceReadings
from perf_callbacks.memory.use import MemoryUse

WAITING = frozenset({"data", "communication"})

TRAINERS = frozenset({"transformers", "lightning"})
"""Integrations whose framework runs code of its own between the stages of a step."""

INTERRUPTED = (0.75, 1.4)
"""Least and most seconds saved per second of avoided interruptions: the steps after one are slower too.

In `benchmarks/promises.py`, 39 of 42 programs saved 0.77 to 1.39 s, and three saved 0.45, 0.47 and 2.3 s: see
`docs/verdict-evidence.md`.
"""

DEVIATIONS = 1.96
"""Half the width of a 95 % confidence interval, in standard errors."""


class Drift(NamedTuple):
    """Growth of the step time in the course of a fit."""

    first: float
    """Mean seconds of a step in the first quarter."""
    last: float
    """Mean seconds of a step in the last quarter."""
    share: float
    stage: str


class SlowCode(NamedTuple):
    """Slow code of the program in one stage."""

    line: str
    looks: int
    of: int
    """Samples in the stage."""
    of_all: int
    """Samples in all stages."""
    in_loop: bool = False
    """The function of `line` runs in several stages, so it may contain the training loop."""

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
    """Arguments of the trainer that have an effect in this program, with the name of the class that takes them."""
    rarer: Mapping[str, Rarer] = field(default_factory=dict)
    checkpointing: str | None = None
    """Beginning of the names of the model's methods for checkpointing; None also if other code checkpoints."""
    resizable: bool = False
    accelerator: str | None = None
    cpus: int | None = None
    """That the process may keep busy: its share of the job's CPUs on this machine."""
    memory_available: int | None = None
    """Bytes of host memory that the process may still take."""
    local_ranks: int = 1
    ranks_on_cpus: int = 1
    """Processes of the job that share the CPUs on which this process may run."""
    workers: int | None = None
    """Of the training loader; None: it is no `DataLoader`."""
    iterable: bool = False
    """Each worker would load all samples of the data set, unless the data set divides them."""
    prefetch: int = 2
    batch_bytes: int | None = None
    batch_lengths: int = 0
    """Distinct sequence lengths of batches; 0: unknown."""
    calm_share: float | None = None
    """Share of calm groups, each of as many steps as there are workers.

    In a calm group, waits for data took less than the share `loaded_batches.STARVED` of the time.
    """
    burst_seconds: float = 0.0
    """Mean wait for data in a group of steps that isn't calm."""
    persistent: bool = False
    epochs: int = 0
    """Epochs whose first step was measured, without the fit's first epoch."""
    epoch_wait_seconds: float = 0.0
    """Wait for the first batch of the epochs that `epochs` counts, averaged over all steps of the fit."""
    epoch_wait_in_rows: float = 0.0
    """Like `epoch_wait_seconds`, but only with waits in measured steps."""
    data_line: str | None = None
    """Busiest line of a function in at least half of the samples of the stage `data`."""
    host_line: str | None = None
    """As `data_line`, of the stage `other`."""
    first_seconds: Mapping[str, float] = field(default_factory=dict)
    """Of each stage in the first step. `other` includes the startup."""
    first_line: str | None = None
    """As `data_line`, of the first step."""
    slow_code: Mapping[str, SlowCode] = field(default_factory=dict)
    host_wait: SlowCode | None = None
    collect_line: str | None = None
    """Whose calls of `gc.collect()` took longest."""
    collect_seconds: float = 0.0
    attention: str | None = None
    sdpa: bool = False
    optimizer: str | None = None
    fused: bool = False
    tensors: int = 0
    elements: float = 0.0
    """Mean per tensor that the optimizer updates."""
    threads: int = 1
    threads_code: str = "OMP_NUM_THREADS={}"
    log_every: int | None = None
    gc: str = "sync"
    ddp: bool = False
    nan_filter: bool = False
    weights: Mapping[tuple[int, ...], int] = field(default_factory=dict)
    vocabulary: int | None = None
    head: int | None = None
    device_type: str = "cpu"
    """Torch's name, such as "cuda"."""
    half: str | None = None
    """"bf16" or "fp16" if the device multiplies it faster than float32."""
    tensor_cores: bool = False
    multiprocessors: int | None = None
    tf32: bool = False
    tf32_possible: bool = False
    peaks: Peaks | None = None
    clocks: str | None = None
    blocking: str | None = None
    """Environment variable that is set and makes each kernel launch wait for the device."""
    anomalies: bool = False
    memory: MemoryUse | None = None
    readings: DeviceReadings | None = None
    deterministic: bool = False
    uncached: str | None = None
    """Environment variable that is set and turns off the cache of device memory."""
    expandable: str | None = None
    """Setting that lets segments of device memory grow; None also if it is already on."""
    free_cpus: float | None = None
    """Mean number of idle CPUs among those that the process may keep busy."""
    left_cpus: float | None = None
    """CPUs of the process that other programs neither use nor wait for."""
    idle_share: float | None = None
    """Share of the fit in which the training thread waited for a disk, a device or a process, and needed no CPU."""
    starved_share: float | None = None
    quota_reached: bool = False
    update_part: float | None = None
    """Part of the stage `optimizer` in the optimizer's `step`; the rest is clipping and `zero_grad`."""
    compilations: Compilations | None = None
    drift: Drift | None = None
    widths: Mapping[str, float] = field(default_factory=dict)
    """Half the width of the 95 % interval of each stage's share of the step time, relative to the share."""
    work: Flops | None = None
    profiles: tuple[Profile, ...] = ()

    def option(self, name: str, value: object) -> str | None:
        """Code that sets an argument of the trainer; None: it would have no effect in this program."""
        return f"{self.options[name]}({name}={value})" if name in self.options else None

    @property
    def compiled(self) -> bool:
        return (self.work is not None and self.work.compiled) or bool(self.compilations and self.compilations.number)


class Measured:
    """Times of a whole fit."""

    def __init__(self, summary: Summary, facts: Facts = Facts()) -> None:
        self.summary, self._facts = summary, facts
        wall = summary.wall_seconds
        self.seconds = sum(wall.values()) - wall.get(STARTUP, 0.0)
        """Wall time without the startup. A share of the run is always a share of it."""
        self.steps_seconds = wall.get(STEPS, 0.0)
        self.known = self.seconds > 0 and summary.long_enough and bool(summary.stage_seconds)
        """Enough steps were measured, and their stages are known."""

    @property
    def step_seconds(self) -> float:
        return self.summary.step_time or 0.0

    def stage(self, name: str) -> float:
        """Mean seconds per step; 0 if the stage was never entered."""
        return self._per_step(self.summary.stage_seconds.get(f"{name}_time", 0.0))

    def model(self, name: str) -> float:
        """Mean seconds per step without slow code, which another rule reports."""
        slow = self._facts.slow_code.get(name)
        return self.stage(name) * (1 - slow.part if slow is not None else 1.0)

    def with_cpu(self, share: float) -> float:
        if not self._facts.starved_share or not self.summary.included_seconds or not self.steps_seconds:
            return share
        waits = WAITING if self._facts.workers else {"communication"}  # without workers, the thread loads batches
        waited = sum([self.summary.stage_seconds.get(f"{name}_time", 0.0) for name in waits])
        working = self.steps_seconds * (1 - waited / self.summary.included_seconds)
        return share * max(0.0, 1 - self._facts.starved_share * self.seconds / working) if working > 0 else share

    def low(self, share: float, *stages: str) -> float | None:
        """Lower end of the 95 % interval of a share of the step time, within `stages`; None: too few steps."""
        widths = self._facts.widths
        return share * max(0.0, 1 - max([widths[name] for name in stages])) if widths else None

    def part(self, name: str) -> float:
        """Mean seconds per step of a named part of the stage `other`, or 0 without such a part."""
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
    """Least and largest saving if interruptions that take this share of the run are avoided.

    >>> [round(end, 3) for share in (0.2, 0.95) for end in interrupting(share)]
    [0.15, 0.28, 0.712, 0.975]
    """
    return INTERRUPTED[0] * share, min(most * share, (share + 1) / 2)


Rule = Callable[[Facts, Measured | None], Finding | None]


def timed(rule: Callable[[Facts, Measured], Finding | None]) -> Rule:
    """Let a rule find nothing until enough steps are measured."""

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
    """Return None if the share of the run that could be saved is too small. `low` is the lower end of its interval."""
    if share is not None and share < WORTH:
        return None
    share = None if share is None else min(share, 1.0)
    return Finding(cause=cause, share=share, low=low, evidence=evidence, remedy=remedy, line=line)
