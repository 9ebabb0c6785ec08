"""Environment of a fit, read once, on which the startup checklist decides."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.process import cpu_facts, processes, topology
from perf_callbacks.kernel.process.collector import COLLECTOR, generational
from perf_callbacks.kernel.process.cpu_sets import CpuFacts
from perf_callbacks.kernel.process.resident_memory import memory_available

if TYPE_CHECKING:  # this module does without torch
    from perf_callbacks.kernel.process.device import Device


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Machine and interpreter at the beginning of a fit. None: unknown."""

    gc_enabled: bool
    """True if automatic garbage collection is on, or was until a fit turned it off."""
    gc_thresholds: tuple[int, int, int]
    gc_frozen: int | None
    """`gc.get_freeze_count()`, of which Python makes some hundreds; 0 while a fit keeps objects frozen. None: not
    counted."""
    gc_generational: bool
    accelerator: str | None
    """Such as "cuda". None: the process uses no accelerator."""
    pinned_copies: bool | None
    """True if copies from pinned memory overlap with the accelerator's work. None: unknown, or no accelerator."""
    cpus: int | None
    """CPUs that the process may keep busy: an equal share of the job's here, within its affinity mask."""
    memory_available: int | None
    """Bytes of host memory that are left, within the limit of the control group."""
    local_world_size: int = 1
    processes_on_cpus: int = 1
    """Processes of the job that share the CPUs in this process's affinity mask."""
    loaders_pin: bool | None = None
    """True if the trainer's loaders pin their batches. None: each loader keeps its own setting."""
    copies_go_on: bool | None = None
    cpu_facts: CpuFacts | None = None
    cpus_unknown: str | None = None
    """Why `cpu_facts` is None."""


def read(
    *,
    device: "Device | None" = None,
    devices: int = 1,
    affinity: str = "off",
    workers: int = 0,
    local_ranks: tuple[int, int] | None = None,
    loaders_pin: bool | None = None,
    copies_go_on: bool | None = None,
    count_frozen: bool = False,
    root: Path = Path("/"),
) -> Environment:
    """`root` has `/proc` and `/sys`. With objects that the program froze, `count_frozen` takes tens of milliseconds."""
    device = None if device is None or device.kind == "cpu" else device
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = max(1, int(local)) if local.isdecimal() else 1
    mask = processes.cpu_mask()
    of_the_job = len(mask | (topology.mask_of(root, os.getppid()) or mask))  # 0: unknown
    facts = None
    with guard() as attempt:  # other items of the checklist need no CPU facts
        facts = cpu_facts.read(
            affinity,
            None if device is None else device.kind,
            None if device is None else device.properties(),
            devices=devices,
            workers=workers,
            local=local_ranks,
            root=root,
        )
    return Environment(
        gc_enabled=COLLECTOR.automatic,
        gc_thresholds=COLLECTOR.thresholds,
        gc_frozen=COLLECTOR.frozen if count_frozen else None,
        gc_generational=generational(),
        accelerator=None if device is None else device.kind,
        pinned_copies=None if device is None else device.pinned_copies,
        cpus=_cpus(ranks, of_the_job, root),
        processes_on_cpus=max(1, round(ranks * len(mask) / of_the_job)) if of_the_job else ranks,  # spread evenly
        memory_available=memory_available(root),
        local_world_size=ranks,
        loaders_pin=loaders_pin,
        copies_go_on=copies_go_on,
        cpu_facts=facts,
        cpus_unknown=attempt.reason or None,
    )


def _cpus(ranks: int, of_the_job: int, root: Path) -> int | None:
    """Return this process's equal share of the CPUs in its mask and its parent's, such as torchrun's.

    A quota of the control group may allow fewer; it is never more than this process's own mask.
    """
    own = processes.allowed_cpus()
    if own is None:
        return None
    quota, together = topology.quota(root), float(of_the_job or own)
    together = together if quota is None else min(together, quota)
    return max(1, min(own, int(together / ranks)))
