"""Signs of life of the process that writes a journal, taken from files alone."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.records import interim

Locks = Mapping[tuple[int, int, int], int]
"""Processes that hold a lock, by major and minor number of the device and number of the file."""

_WORDS = 8
"""Number of words in a line about a lock that a process holds. If the process waits, the line has one word more."""


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs of life of a journal's writer."""

    written_unix: float
    """Time of the last write to the journal or the summary beside the journal."""
    pid: int | None
    """Living process on this machine that holds the journal's lock, or held the lock at an earlier reading. None:
    unknown."""
    gone: int | None = None
    """Process that held the journal's lock at an earlier reading, and has ended since. None: there is no such process,
    or the journal was read once."""


def signs(journal: Path, locks: Locks) -> Signs:
    """Return the signs of life of a journal's writer. Raise `OSError` if the journal is gone."""
    beside = None
    with suppress(OSError):
        beside = interim.path_of(journal).stat()
    return signs_of(journal.stat(), beside, locks)


def signs_of(journal: os.stat_result, summary: os.stat_result | None, locks: Locks) -> Signs:
    """Return the signs of life that a journal and the summary beside it give."""
    written = journal.st_mtime if summary is None else max(journal.st_mtime, summary.st_mtime)
    if not locks or not hasattr(os, "major"):  # Windows
        return Signs(written, None)
    return Signs(written, locks.get((os.major(journal.st_dev), os.minor(journal.st_dev), journal.st_ino)))


def exists(pid: int) -> bool:
    """Return True if a process runs on this machine, which lists its processes in /proc, and is no zombie."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    return False


def read_locks(path: Path = Path("/proc/locks")) -> Locks:
    """Return the locks of this machine. Empty: the system doesn't list them.

    Taking the lock for a moment would show as much, but a run that starts in this moment would then find its journal in
    use.
    """
    found: dict[tuple[int, int, int], int] = {}
    with suppress(OSError, ValueError):
        for words in map(str.split, path.read_text(encoding="ascii").splitlines()):
            if len(words) == _WORDS and (words[1], words[3]) == ("FLOCK", "WRITE"):
                major, minor, number = words[5].split(":")
                found[int(major, 16), int(minor, 16), int(number)] = int(words[4])
    return found
