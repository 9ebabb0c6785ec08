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
"""Number of words in a line about a lock that a process holds. A process that waits for a lock has one more."""


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs of life of a journal's writer."""

    written_unix: float
    """Time of the last write to the journal or the summary beside the journal."""
    pid: int | None
    """Process on this machine that has locked the journal, and so is alive. None: not known to this machine."""


def signs(journal: Path, locks: Locks) -> Signs:
    """Return the signs of life of a journal's writer. Raise `OSError` if the journal is gone."""
    found = journal.stat()
    written = found.st_mtime
    with suppress(OSError):
        written = max(written, interim.path_of(journal).stat().st_mtime)
    if not locks:  # also on Windows, where a device has no major number
        return Signs(written, None)
    return Signs(written, locks.get((os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)))


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
