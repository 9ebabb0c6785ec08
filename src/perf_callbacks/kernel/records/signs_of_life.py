"""Find out, from files alone, if the process that writes a journal is alive."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import suppress

Locks = Mapping[tuple[int, int, int], int]
"""Id of the process that holds the lock on a file, for each locked file. The key consists of the major and minor number
of the file's device, and the file's inode number."""

_WORDS = 8
"""Number of words in a line of /proc/locks about a held lock. A line about a process that waits for a lock has one more
word."""


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs of life of a journal's writer."""

    written_unix: float
    """Time of the last write to the journal or the summary beside the journal."""
    pid: int | None
    """Id of the process on this machine that holds the lock of the journal, or held the lock earlier and still lives.
    None: unknown."""
    gone: int | None = None
    """Id of the process that held the lock of the journal at an earlier reading, and has ended. None if there is no
    such process, or if the journal was read only once."""


def signs(journal: os.stat_result, summary: os.stat_result | None, locks: Locks) -> Signs:
    """Return the signs of life of a journal's writer, from the status of the journal and of its summary file."""
    written = journal.st_mtime if summary is None else max(journal.st_mtime, summary.st_mtime)
    if not locks or not hasattr(os, "major"):  # Windows
        return Signs(written, None)
    return Signs(written, locks.get((os.major(journal.st_dev), os.minor(journal.st_dev), journal.st_ino)))


def exists(pid: int) -> bool:
    """Return True if /proc on this machine lists a process with this id, and the process is no zombie."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    return False


def read_locks(path: Path = Path("/proc/locks")) -> Locks:
    """Return the file locks that processes of this machine hold; empty if the system doesn't list them.

    This function takes no lock on a journal, because the lock could keep a starting run from its journal.
    """
    found: dict[tuple[int, int, int], int] = {}
    with suppress(OSError, ValueError):
        for words in map(str.split, path.read_text(encoding="ascii").splitlines()):
            if len(words) == _WORDS and (words[1], words[3]) == ("FLOCK", "WRITE"):
                major, minor, number = words[5].split(":")
                found[int(major, 16), int(minor, 16), int(number)] = int(words[4])
    return found
