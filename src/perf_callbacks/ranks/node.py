"""The ranks of one machine in a job of many: one of them talks with the store for all.

The ranks leave each other notes as files in a directory of their own. The first rank puts their parts of a window
together into one note in the store, and passes on settings, windows and notes about stalls. So the store has one more
connection per machine, and not one per rank.
"""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from perf_callbacks.core.packed_parts import unpack_parts

GATHER_SECONDS = 3.0
"""Seconds after which the parts of a machine are passed on without those that are missing."""

CLOCK_SECONDS = 1.0
"""Seconds by which the times of files and processes may differ."""

LOOK_SECONDS = 2.0
"""Seconds between two looks for notes about stalls."""


@dataclass(frozen=True, slots=True)
class Node:
    """The ranks of this machine."""

    ranks: range
    rank: int
    """The rank of this process."""
    directory: Path
    """Directory of their notes."""

    @property
    def talks(self) -> bool:
        """True: this rank talks with the store for the others."""
        return self.rank == self.ranks[0]


def gathered(
    rank: int, world_size: int, local: tuple[int, int] | None, *, many: int, job: Sequence[str]
) -> Node | None:
    """Return the ranks of this machine, if one of them is to talk for all of them. None: each one talks.

    The ranks of a machine have to decide the same, each by itself, as talking would take a connection. Machines may
    decide differently: rank 0 finds the ranks that talk. Launchers number the ranks of a machine one after the other.

    Args:
        rank: Rank of this process.
        world_size: Number of ranks of the job.
        local: Rank on this machine and number of ranks there. None: unknown.
        many: Number of ranks up to which each one talks.
        job: Words that tell this job from others on the machine.
    """
    place, number = local or (0, 1)
    first = rank - place
    if world_size <= many or number == 1 or first < 0 or first + number > world_size:
        return None
    name = sha256("\n".join([*job, str(first)]).encode()).hexdigest()[:16]
    user = os.getuid() if hasattr(os, "getuid") else 0
    directory = Path(tempfile.gettempdir()) / f"perf_callbacks-{user}-{name}"
    return Node(range(first, first + number), rank, directory)


class Folder:
    """Notes by key, as files that only this user may read or write. As with the store, reading never waits."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._began = process_began() - CLOCK_SECONDS
        self._make()

    def _make(self) -> None:
        """Make the directory. If somebody else has made it, what lies there is not from this job."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        found = self._directory.lstat()
        foreign = hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o077)
        if foreign or not stat.S_ISDIR(found.st_mode):
            raise PermissionError(f"the directory {self._directory} belongs to somebody else")

    def write(self, key: str, note: str | bytes) -> None:
        """Write or overwrite a note."""
        new = self._directory / f"{key}.{os.getpid()}"
        data = note.encode() if isinstance(note, str) else note
        try:
            new.write_bytes(data)
        except FileNotFoundError:  # another rank has ended, and left an empty directory
            self._make()
            new.write_bytes(data)
        new.replace(self._directory / key)

    def read(self, *keys: str) -> list[str]:
        """Read the notes under some keys, in order; none of them while one is missing."""
        try:
            return [self._bytes(key).decode(errors="replace") for key in keys]
        except OSError:
            return []

    def get(self, keys: Sequence[str]) -> list[bytes]:
        """Read the bytes under some keys; none where nothing is."""
        notes = []
        for key in keys:
            try:
                notes.append(self._bytes(key))
            except OSError:
                notes.append(b"")
        return notes

    def _bytes(self, key: str) -> bytes:
        path = self._directory / key
        if path.stat().st_mtime < self._began:  # a job that was killed has left it, and had the same address
            raise FileNotFoundError(key)
        return path.read_bytes()

    def leave(self, verdict: str | None = None) -> None:
        """Remove the directory, unless there are settings in it of another fit or from a rank that is still there.

        `verdict` are the settings that this rank has passed on.
        """
        if next(iter(self.read("verdict")), None) == verdict:
            shutil.rmtree(self._directory, ignore_errors=True)


def process_began() -> float:
    """Return the time of the wall clock at which this process began. 0: unknown.

    Ranks of one job write their notes after all processes have begun, because the process group waits for them.
    """
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):  # not on Linux
        return 0.0


class Relay:
    """The first rank of a machine, as it talks with the store for the others."""

    def __init__(self, node: Node, key: Callable[[int, int], str], kept: int) -> None:
        self.folder = Folder(node.directory)
        self._others = node.ranks[1:]
        self._first = node.ranks[0]
        self._key, self._kept = key, kept  # of a rank's part in a window; windows for which there are keys
        self._passed: dict[str, str] = {}
        self._open: dict[int, _Open] = {}

    def tell(self, notes: Mapping[str, str]) -> None:
        """Pass notes from the store on to the other ranks, where they have changed."""
        for key, note in notes.items():
            if self._passed.get(key) != note:  # files are written rarely, and read often
                self.folder.write(key, note)
                self._passed[key] = note

    def open(self, window: int, own: bytes, now: float, deadline: float) -> None:
        """Begin to collect a window. `own` is the part of this rank, unless it doesn't go into the store."""
        self._open[window] = _Open(own, now, deadline)
        for old in [*self._open][: -self._kept]:
            del self._open[old]

    def stalls(self) -> dict[str, str]:
        """Return the notes of the other ranks about stalls that are new."""
        keys = [f"stall{rank}" for rank in self._others]
        notes = {key: note.decode(errors="replace") for key, note in zip(keys, self.folder.get(keys), strict=True)}
        new = {key: note for key, note in notes.items() if note and self._passed.get(key) != note}
        self._passed.update(new)
        return new

    def collect(self, fit: bytes, now: float) -> dict[str, bytes]:
        """Return what is to be written into the store: parts of a window of all ranks, or of those that are there.

        Parts that come later than others are passed on too, until the deadline of the window.
        """
        notes = {}
        for window, one in [*self._open.items()]:
            blobs = self.folder.get([self._key(rank, window) for rank in self._others])
            found = [blob for blob in blobs if [part.window for part in unpack_parts(blob, fit)] == [window]]
            complete = len(found) == len(self._others)
            if complete or (now - one.since >= GATHER_SECONDS and len(found) > one.sent):
                notes[self._key(self._first, window)] = b"".join([one.own, *found])
                one.sent = len(found)
            if complete or now >= one.deadline:
                del self._open[window]
        return notes

    @property
    def since(self) -> float | None:
        """The time at which the newest window that is being collected was opened."""
        return max([one.since for one in self._open.values()], default=None)


@dataclass(slots=True)
class _Open:
    """A window that is being collected."""

    own: bytes
    since: float
    deadline: float
    sent: int = -1
    """Number of other parts that were passed on."""
