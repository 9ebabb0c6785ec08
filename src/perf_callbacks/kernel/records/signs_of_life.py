"""Says, from files alone, if the process that writes a journal is alive."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.kernel.records.fit_records import Run

Locks = Mapping[tuple[int, int, int], int]
"""The process that holds the lock on a file, by major and minor number of its device, and inode."""

MOST_PIDS = 2**22 + 2
"""Ids of processes on Linux are smaller."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")

_WORDS = 8
"""Words of a held lock in /proc/locks. A waiting process has one more."""


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs of life of a journal's writer."""

    written_unix: float
    """Last write to the journal or the summary beside it."""
    pid: int | None
    """Process here that holds the journal's lock, or wrote it and still lives. None: unknown."""
    gone: int | None = None
    """Process here that wrote the journal, and has ended. None: unknown, or none."""
    size: int = 0
    """Bytes of the journal."""


def signs(journal: os.stat_result, summary: os.stat_result | None, locks: Locks) -> Signs:
    written = journal.st_mtime if summary is None else max(journal.st_mtime, summary.st_mtime)
    if not locks or not hasattr(os, "major"):  # Windows
        return Signs(written, None, size=journal.st_size)
    pid = locks.get((os.major(journal.st_dev), os.minor(journal.st_dev), journal.st_ino))
    return Signs(written, pid, size=journal.st_size)


def boot_id(path: Path = BOOT_ID) -> str:
    """Outside of Linux, raise `OSError`."""
    return path.read_text(encoding="ascii").strip()


def own_process() -> dict[str, Any]:
    """Return the fields of `Run` about this process; none if the system shows no PID namespaces."""
    with suppress(OSError):
        return {"pid": os.getpid(), "pid_namespace": _PID_NAMESPACE.stat().st_ino}
    return {}


def local_process(run: Run) -> int | None:
    """Return the id of the process that wrote a `run` record. None: it ran on another machine or in a container."""
    with suppress(OSError, ValueError):
        here = run.boot_id == boot_id() and run.pid_namespace == _PID_NAMESPACE.stat().st_ino
        return run.pid if here and run.pid is not None and 0 < run.pid < MOST_PIDS else None
    return None


def exists(pid: int, uptime_seconds: float | None = None) -> bool:
    """Zombies don't count. A process begun later than `uptime_seconds` after the boot is another one with this id."""
    with suppress(OSError, IndexError, ValueError):
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        began = int(words[19]) / os.sysconf("SC_CLK_TCK")
        return words[0] not in {b"Z", b"X"} and (uptime_seconds is None or began <= uptime_seconds)
    try:
        os.kill(pid, 0)
    except OSError as error:
        let_pass(error)
        return isinstance(error, PermissionError)  # the option hidepid of /proc hides the processes of other users
    return True


def read_locks(path: Path = Path("/proc/locks")) -> Locks:
    """Return the locks of this machine, if listed, without taking one: that could keep a run from its journal."""
    holders: dict[tuple[int, int, int], int] = {}
    with suppress(OSError, ValueError):
        for words in map(str.split, path.read_text(encoding="ascii").splitlines()):
            if len(words) == _WORDS and (words[1], words[3]) == ("FLOCK", "WRITE"):
                major, minor, number = words[5].split(":")
                holders[int(major, 16), int(minor, 16), int(number)] = int(words[4])
    return holders
