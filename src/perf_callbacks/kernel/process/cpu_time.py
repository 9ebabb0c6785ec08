"""Linux's counters: CPU time and waits of a thread, idle time of CPUs, and pauses because of a CPU quota."""

import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.units import MICROSECOND, NANOSECOND

_THROTTLED = {"throttled_usec": MICROSECOND, "throttled_time": NANOSECOND}
"""Time in which a CPU quota stopped threads, in seconds: control groups of version 2, and of version 1."""

_IDLE, _WAITING = 3, 4
"""Columns of /proc/stat: idle ticks, and idle ticks while tasks waited for a disk."""


class CpuTime(NamedTuple):
    """Seconds since the thread began."""

    ran: float
    queued: float
    """Ready to run, without a CPU."""

    def since(self, before: "CpuTime") -> "CpuTime":
        return CpuTime(self.ran - before.ran, self.queued - before.queued)


def read(thread: int | None = None, root: Path = Path("/")) -> CpuTime | None:
    """`thread` is a native id; None: the calling thread."""
    with suppress(OSError, ValueError, IndexError):
        file = root / f"proc/self/task/{thread or threading.get_native_id()}/schedstat"
        ran, queued, *_ = map(int, file.read_text(encoding="ascii").split())
        return CpuTime(ran * NANOSECOND, queued * NANOSECOND) if ran else None
    return None


def voluntary_switches(thread: int | None, root: Path = Path("/")) -> int | None:
    """Read how often the thread with this native id began to wait; None if unavailable."""
    with suppress(OSError, ValueError):
        status = (root / f"proc/self/task/{thread}/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].partition("\n")[0])
    return None


def runnable(thread: int, root: Path = Path("/")) -> bool:
    """Return True if the thread with this native id runs or waits for a CPU. False also stands for unknown."""
    with suppress(OSError, IndexError):
        text = (root / f"proc/self/task/{thread}/stat").read_text(encoding="ascii", errors="replace")
        return text.rpartition(")")[2].split()[0] == "R"  # a thread's name may hold spaces and parentheses
    return False


def idle(cpus: Collection[int], root: Path = Path("/")) -> float | None:
    idle_ticks = []
    with suppress(OSError, ValueError, IndexError, AttributeError):  # Windows has no `sysconf`
        for line in (root / "proc/stat").read_text(encoding="ascii").splitlines():
            name, *ticks = line.split()
            if name != "cpu" and name.startswith("cpu") and int(name.removeprefix("cpu")) in cpus:
                idle_ticks.append(int(ticks[_IDLE]) + int(ticks[_WAITING]))
        return sum(idle_ticks) / os.sysconf("SC_CLK_TCK") if idle_ticks and len(idle_ticks) == len(cpus) else None
    return None


def throttled(root: Path = Path("/")) -> float | None:
    for file in ("sys/fs/cgroup/cpu.stat", "sys/fs/cgroup/cpu/cpu.stat"):
        with suppress(OSError, ValueError):
            for line in (root / file).read_text(encoding="ascii").splitlines():
                name, _, amount = line.partition(" ")
                if name in _THROTTLED:
                    return int(amount) * _THROTTLED[name]
    return None
