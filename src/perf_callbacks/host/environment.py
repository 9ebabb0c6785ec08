"""What a fit runs on and in, read once: the facts that the startup checklist decides by."""

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perf_callbacks.host.collector import COLLECTOR, generational


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The machine and the interpreter as they were when a fit began. None: unknown."""

    python: tuple[int, int]
    gc_enabled: bool
    """Whether the process collects by itself, fits aside."""
    gc_thresholds: tuple[int, int, int]
    gc_frozen: int
    """Objects that somebody froze, fits aside. Interpreters freeze some hundreds of their own."""
    gc_generational: bool
    """Whether young objects can be collected by themselves."""
    accelerator: str | None
    """The kind of accelerator that is trained on, such as "cuda". None: there is none."""
    cpus: int | None
    """CPUs that this process may run on."""
    memory_available: int | None
    """Bytes of host memory that the process may still take, its control group's limit included."""
    local_world_size: int = 1
    """Processes of the job on this machine."""
    loaders_pin: bool | None = None
    """Whether the trainer's loaders pin their batches. None: each as it was told to."""
    copies_go_on: bool | None = None
    """Whether the trainer's copies to the device are not waited for. None: it is not the trainer that copies."""


def read(
    *,
    accelerator: str | None = None,
    loaders_pin: bool | None = None,
    copies_go_on: bool | None = None,
    root: Path = Path("/"),
) -> Environment:
    """Look around; what the door knows is passed on. `root` is where `/proc` and `/sys` are."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return Environment(
        python=sys.version_info[:2],
        gc_enabled=COLLECTOR.automatic,
        gc_thresholds=COLLECTOR.thresholds,
        gc_frozen=COLLECTOR.frozen,
        gc_generational=generational(),
        accelerator=accelerator,
        cpus=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        memory_available=memory_available(root),
        local_world_size=max(1, int(local)) if local.isdecimal() else 1,
        loaders_pin=loaders_pin,
        copies_go_on=copies_go_on,
    )


def memory_available(root: Path = Path("/")) -> int | None:
    """Bytes of host memory that are left: the machine's, or the control group's if that is less."""
    known = [amount for amount in (_machine(root), _group(root)) if amount is not None]
    return min(known, default=None)


def _machine(root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _group(root: Path) -> int | None:
    """What the control group that is mounted here leaves; None where it has no limit."""
    group = root / "sys/fs/cgroup"
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            return max(0, int((group / limit).read_text()) - int((group / usage).read_text()))
    return None
