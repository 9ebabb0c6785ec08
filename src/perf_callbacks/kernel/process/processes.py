"""CPU time, memory and disk reads of this process and its children, as Linux's `/proc` shows them.

Children that are ranks of the job are left out, with their own children: Lightning starts the other ranks of a machine
from the first. Each rank reads its own processes.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perf_callbacks.kernel.clock import seconds_since_boot
from perf_callbacks.kernel.foreign_errors import suppress

LOCAL_RANK = b"LOCAL_RANK="

UTIME, STIME, CUTIME, CSTIME, STARTTIME = 11, 12, 13, 14, 19
"""Fields of `/proc/<pid>/stat` after the process name, which is in parentheses and may contain any character."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Processes:
    """Totals of a process and its children. The CPU time includes ended children that their parent has waited for."""

    cpu_seconds: float
    resident_bytes: int
    """Pages that processes share are counted once per process."""
    anonymous_bytes: int | None
    """Without file pages and shared memory. None: unavailable."""
    read_bytes: int | None


def age() -> float | None:
    """None: unknown, for example on Windows."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[STARTTIME])
        seconds = seconds_since_boot() - ticks / os.sysconf("SC_CLK_TCK")
        return seconds if ticks and seconds >= 0 else None
    return None


def read(root: Path = Path("/"), pid: int | None = None) -> Processes | None:
    """None without Linux's `/proc`. This takes about 30 us per process and 10 us per thread."""
    proc = root / "proc"
    with suppress(OSError, ValueError, IndexError, AttributeError):
        own = os.getpid() if pid is None else pid
        ranks = {*_local_ranks(proc / str(own)), LOCAL_RANK + os.environ.get("LOCAL_RANK", "").encode()}
        pids = {*_tree(proc, own, ranks)}
        stats = [stat for stat in (_stat(proc / str(child)) for child in pids) if stat is not None]
        if not stats:
            return None
        reads = [entry(proc / str(child) / "io", "read_bytes") for child in pids]
        amounts = [int(number) for number in reads if number is not None and number.isdecimal()]
        resident, shared = [sum(pages) for pages in zip(*[pages for _, pages in stats], strict=True)]
        ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        return Processes(
            cpu_seconds=sum([ran for ran, _ in stats]) / ticks,
            resident_bytes=resident * page,
            anonymous_bytes=(resident - shared) * page if shared else None,  # gVisor reports 0, which no process has
            read_bytes=sum(amounts) if amounts else None,
        )
    return None


def cpu_mask() -> frozenset[int]:
    """Empty if the system doesn't say."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def allowed_cpus() -> int | None:
    return len(cpu_mask()) or os.cpu_count()


def text(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return None


def entry(path: Path, name: str) -> str | None:
    """Return the text after `name:` in a file of `/proc`."""
    for line in (text(path) or "").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return None


def _local_ranks(process: Path) -> set[bytes]:
    """Return the local-rank entry of the environment with which a process started, if any."""
    with suppress(OSError):
        return {
            variable for variable in (process / "environ").read_bytes().split(b"\0") if variable.startswith(LOCAL_RANK)
        }
    return set()


def _tree(proc: Path, pid: int, own: set[bytes] | None) -> Iterator[int]:
    """Yield a process and its descendants, without children that are other ranks: local-rank entries not in `own`."""
    yield pid
    threads = proc / str(pid) / "task"
    if not (threads / str(pid) / "children").exists():
        raise FileNotFoundError(f"the kernel lists no children in {threads}")
    for thread in os.listdir(threads):  # noqa: PTH208 their names are enough
        children = ""
        with suppress(OSError):  # a thread that has just ended
            children = (threads / thread / "children").read_text()
        for child in children.split():
            with suppress(OSError):  # a child that has just ended
                if own is None or _local_ranks(proc / child) <= own:
                    yield from _tree(proc, int(child), None)


def _stat(process: Path) -> tuple[int, tuple[int, int]] | None:
    """Return CPU ticks, resident pages, and pages of files and shared memory. None: the process has just ended."""
    with suppress(OSError):
        values = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        _, resident, shared = map(int, (process / "statm").read_text().split()[:3])
        return sum([int(values[place]) for place in (UTIME, STIME, CUTIME, CSTIME)]), (resident, shared)
    return None
