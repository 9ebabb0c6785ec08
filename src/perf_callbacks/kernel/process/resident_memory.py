"""How much memory a process uses and may still use."""

from collections.abc import Callable, Mapping

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

import sys
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process import processes

_UNLIMITED = -1 if resource is None else resource.RLIM_INFINITY

UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of `ru_maxrss`: macOS counts bytes, Linux KiB."""


def peak_bytes() -> int | None:
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def in_use(allocated: Callable[[], int | None] = lambda: None) -> Mapping[str, int]:
    """Return the host's peak and, by `allocated`, the device's memory, in bytes. Unknown values are left out."""
    amounts = {"host": peak_bytes(), "device": allocated()}
    return {kind: amount for kind, amount in amounts.items() if amount is not None}


def memory_available(root: Path = Path("/")) -> int | None:
    """Return what the machine or the control group has left, whichever is less."""
    amounts = [amount for amount in (_machine(root), _group(root)) if amount is not None]
    return min(amounts, default=None)


def _machine(root: Path) -> int | None:
    kib = (processes.entry(root / "proc/meminfo", "MemAvailable") or "").removesuffix(" kB")
    return int(kib) * 1024 if kib.isdecimal() else None


def _group(root: Path) -> int | None:
    """None: the group in `/sys/fs/cgroup` has no limit."""
    group = root / "sys/fs/cgroup"
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            return max(0, int((group / limit).read_text()) - int((group / usage).read_text()))
    return None


def address_space_left(root: Path = Path("/")) -> int | None:
    """Return the bytes that `ulimit -v` leaves. None: unlimited or unknown."""
    if resource is None or (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) == _UNLIMITED:
        return None
    with suppress(OSError, ValueError, IndexError):
        return max(0, limit - int((root / "proc/self/statm").read_text().split()[0]) * resource.getpagesize())
    return None
