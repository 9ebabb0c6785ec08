"""CPU time of a thread, the time in which it waited for a CPU, and that of idle CPUs, as Linux counts them."""

import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from perf_callbacks.kernel.foreign_errors import suppress

NANO = 1e-9

_IDLE, _WAITING = 3, 4
"""Columns of /proc/stat: ticks without a task, and ticks in which the tasks waited for a disk."""


class CpuTime(NamedTuple):
    """Seconds since a thread began."""

    ran: float
    queued: float
    """Time in which the thread could have run, had there been a CPU."""

    def since(self, before: "CpuTime") -> "CpuTime":
        """Return the seconds from an earlier reading to this one."""
        return CpuTime(self.ran - before.ran, self.queued - before.queued)


def read(thread: int | None = None, root: Path = Path("/")) -> CpuTime | None:
    """Read the times of a thread by its native id, or those of the calling thread. None: the system doesn't tell."""
    with suppress(OSError, ValueError, IndexError):
        file = root / f"proc/self/task/{thread or threading.get_native_id()}/schedstat"
        ran, queued, *_ = map(int, file.read_text(encoding="ascii").split())
        return CpuTime(ran * NANO, queued * NANO) if ran else None
    return None


def idle(cpus: Collection[int], root: Path = Path("/")) -> float | None:
    """Return the seconds in which nothing ran on these CPUs, added up. None: the system doesn't tell."""
    found = []
    if not hasattr(os, "sysconf"):  # Windows
        return None
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/stat").read_text(encoding="ascii").splitlines():
            name, *ticks = line.split()
            if name != "cpu" and name.startswith("cpu") and int(name.removeprefix("cpu")) in cpus:
                found.append(int(ticks[_IDLE]) + int(ticks[_WAITING]))
    return sum(found) / os.sysconf("SC_CLK_TCK") if found and len(found) == len(cpus) else None
