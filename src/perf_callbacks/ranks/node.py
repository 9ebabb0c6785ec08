"""The ranks of one machine in a job of many: one of them talks with the store for all.

The ranks leave each other notes as files in a directory of their own. The first rank puts their parts of a window
together into one note in the store, and passes on settings, windows and notes about stalls. So the store has one more
connection per machine, and not one per rank.
"""

import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from perf_callbacks.core.packed_parts import bundle_again, unpack_bundles
from perf_callbacks.ranks.store import LARGEST

GATHER_SECONDS = 3.0
"""Seconds after which the parts of a machine are passed on without those that are missing."""

CLOCK_SECONDS = 0.2
"""Seconds by which the times of files and processes may differ."""

LOOK_SECONDS = 2.0
"""Seconds between two looks for notes about stalls."""

LEFT_SECONDS = 24 * 3600
"""Seconds without a new note after which a directory was left by a job that ended without removing it."""

TRIES = 4
"""Times that a note is written, if another rank removes the directory meanwhile."""

_changing = threading.RLock()  # fits of a process overwrite each other's notes, and remove them


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
    rank: int, world_size: int, local: tuple[int, int] | None, *, many: int, job: Sequence[str], attempt: int = 0
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
        attempt: Number of times that the job was restarted. Each attempt has a directory of its own.
    """
    place, number = local or (0, 1)
    first = rank - place
    if world_size <= many or number == 1 or first < 0 or first + number > world_size:
        return None
    name = sha256("\n".join([*job, str(first)]).encode()).hexdigest()[:16]
    user = os.getuid() if hasattr(os, "getuid") else 0
    directory = Path(tempfile.gettempdir()) / f"perf_callbacks-{user}-{name}-{attempt}"
    return Node(range(first, first + number), rank, directory)


class Folder:
    """Notes by key, as files that only this user may read or write. As with the store, reading never waits."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._began = process_began() - CLOCK_SECONDS
        self._written: dict[str, tuple[int, int]] = {}
        self._make()

    def _make(self) -> None:
        """Make the directory. If somebody else has made it, what lies there is not from this job."""
        with suppress(FileExistsError):
            self._directory.mkdir(mode=0o700)
        try:
            found = self._directory.lstat()
        except FileNotFoundError:  # the last rank of an earlier fit has just removed it
            return
        if not stat.S_ISDIR(found.st_mode):
            raise PermissionError(f"{self._directory} is not a directory; remove it")
        if hasattr(os, "getuid") and found.st_uid != os.getuid():
            raise PermissionError(f"the directory {self._directory} belongs to somebody else")
        if hasattr(os, "getuid") and found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise PermissionError(f"the directory {self._directory} is open to other users (mode {mode:o}); remove it")

    def write(self, key: str, note: str | bytes) -> None:
        """Write or overwrite a note."""
        new = self._directory / f"{key}.{os.getpid()}"
        data = note.encode() if isinstance(note, str) else note
        with _changing:
            for left in reversed(range(TRIES)):
                try:
                    new.write_bytes(data)
                    self._written[key] = _identity(new)
                    new.replace(self._directory / key)
                    break
                except FileNotFoundError:  # another rank has ended, and removed the directory
                    if not left:
                        raise
                    self._make()

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

    def leave(self, *, talks: bool = False) -> None:
        """Remove notes that nobody reads any more.

        The rank that talks removes the directory, unless the settings in it are those of the next fit, which other
        ranks may have heard. The others leave their notes to it, and remove them only if it has left before.
        """
        with _changing:  # the next fit of the rank that talks announces its settings before or afterwards
            if talks and self._own("verdict"):
                shutil.rmtree(self._directory, ignore_errors=True)
            elif talks or not self.read("verdict"):
                for key in [key for key in self._written if self._own(key)]:
                    (self._directory / key).unlink(missing_ok=True)
                with suppress(OSError):  # there are notes of other ranks
                    self._directory.rmdir()

    def _own(self, key: str) -> bool:
        """Return True if a note is the one that was written here, and not by another fit of this process."""
        try:
            return self._written.get(key) == _identity(self._directory / key)
        except OSError:
            return False


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def remove_earlier(directory: Path) -> None:
    """Remove the directories of earlier attempts of a job, which were killed, and of jobs that left theirs long ago.

    While a job runs, its ranks leave notes with each window. If one wrote none for a day, its ranks know all that was
    written before, and make the directory again.
    """
    job, _, _ = directory.name.rpartition("-")
    user, _, _ = job.rpartition("-")
    for other in directory.parent.glob(f"{user}-*-[0-9]*") if user else ():
        with suppress(OSError):
            old = time.time() - other.stat().st_mtime > LEFT_SECONDS
            if other != directory and (old or other.name.rpartition("-")[0] == job):
                shutil.rmtree(other, ignore_errors=True)


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
        remove_earlier(node.directory)
        self.folder = Folder(node.directory)
        self._ranks, self._others = node.ranks, node.ranks[1:]
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
        notes: dict[str, bytes] = {}
        for window, one in [*self._open.items()]:
            blobs = zip(self._others, self.folder.get([self._key(rank, window) for rank in self._others]), strict=True)
            found = {
                rank: blob
                for rank, blob in blobs
                if [(part.window, [*part.ranks]) for part in unpack_bundles(blob, fit)] == [(window, [rank])]
            }
            complete = len(found) == len(self._others)
            if complete or (now - one.since >= GATHER_SECONDS and len(found) > one.sent):
                notes |= self._joined(window, {self._ranks[0]: one.own, **found}, fit)
                one.sent = len(found)
            if complete or now >= one.deadline:
                del self._open[window]
        return notes

    def _joined(self, window: int, parts: Mapping[int, bytes], fit: bytes) -> dict[str, bytes]:
        """Bundle parts in one note, or in several under the keys of other ranks if one would be too large."""
        number = max(1, LARGEST // max(1, *[len(part) for part in parts.values()]))
        groups = [self._ranks[start : start + number] for start in range(0, len(self._ranks), number)]
        notes = {self._key(some[0], window): b"".join([parts.get(rank, b"") for rank in some]) for some in groups}
        return {key: bundle_again(note, fit) for key, note in notes.items()}

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
