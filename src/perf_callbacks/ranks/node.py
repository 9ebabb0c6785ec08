"""The ranks of one machine in a large job: only the machine's first rank talks with the store.

The ranks of a machine leave each other notes as files in a private directory. The first rank packs the data of
all ranks of the machine into one note for the store. The first rank also passes on settings, windows and the notes of
channels.
"""

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from perf_callbacks.kernel.clock import unix_time
from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.kernel.process import processes
from perf_callbacks.ranks.packed_parts import bundle_again, unpack_bundles
from perf_callbacks.ranks.private_directory import PrivateDirectory
from perf_callbacks.ranks.store import LARGEST, rank_key

GATHER_SECONDS = 3.0
"""Seconds after which the first rank passes on its machine's data of a window, even if some ranks' data are missing."""

CLOCK_SECONDS = 0.2
"""A note counts as older than this process only if the note is older by more than this many seconds. The comparison of
a file's time with the start of a process is not exact."""

LOOK_SECONDS = 2.0
"""Seconds after which the first rank looks again for notes of channels."""

LEFT_SECONDS = 24 * 3600
"""A directory without a new note for this many seconds counts as left behind by an ended job."""

TRIES = 4
"""Number of attempts to write a note. An attempt fails if another rank removes the directory before the note is
written."""

_changing = threading.RLock()  # fits of a process overwrite each other's notes, and remove them


@dataclass(frozen=True, slots=True)
class Node:
    """The ranks of this machine."""

    ranks: range
    rank: int
    """The rank of this process."""
    directory: Path
    """Directory of the notes."""

    @property
    def talks(self) -> bool:
        """True if this rank talks with the store for all ranks of its machine."""
        return self.rank == self.ranks[0]


def gathered(
    rank: int, world_size: int, local: tuple[int, int] | None, *, many: int, job: Sequence[str], attempt: int = 0
) -> Node | None:
    """Return the `Node` of this machine, or None if every rank of the machine talks with the store directly.

    The ranks of a machine can't ask each other, because they would need a connection. So each rank decides by itself,
    and all ranks of the machine must come to the same result. Launchers number the ranks of a machine one after the
    other. Different results on two machines do no harm, because rank 0 finds out which ranks talk with the store.

    Args:
        rank: Rank of this process.
        world_size: Number of ranks of the job.
        local: Local rank and number of ranks on this machine. None: unknown.
        many: In a job of at most this many ranks, each rank talks with the store.
        job: Words that distinguish this job from other jobs on the machine.
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


class FileNotes:
    """Notes in files that only this user may read or write. As in `StoreNotes`, reading never waits."""

    def __init__(self, directory: Path) -> None:
        self._directory = PrivateDirectory(directory)
        self._began = process_began() - CLOCK_SECONDS
        self._written: dict[str, tuple[int, int]] = {}
        self._directory.make()

    def write(self, key: str, note: str | bytes) -> None:
        """Write or overwrite a note."""
        new = f"{key}.{os.getpid()}"
        data = note.encode() if isinstance(note, str) else note
        with _changing:
            for left in reversed(range(TRIES)):
                try:
                    self._directory.find()
                    self._written[key] = self._directory.write(new, data)
                    self._directory.rename(new, key)
                    break
                except FileNotFoundError:  # another rank has ended, and removed the directory
                    if not left:
                        raise
                    self._directory.make()

    def read(self, *keys: str) -> list[str]:
        """Read the notes under these keys, in the order of the keys; an empty list if a note is missing."""
        with _changing:
            try:
                self._directory.find()
                return [self._directory.read(key, since=self._began).decode(errors="replace") for key in keys]
            except OSError as error:
                let_pass(error)
                return []

    def get(self, keys: Sequence[str]) -> list[bytes]:
        """Read the bytes under these keys; empty for a missing note."""
        notes = dict.fromkeys(keys, b"")
        with _changing, suppress(OSError):
            self._directory.find()
            for key in keys:
                with suppress(OSError):
                    notes[key] = self._directory.read(key, since=self._began)
        return [notes[key] for key in keys]

    def leave(self, *, talks: bool = False) -> None:
        """Remove notes that no rank reads any more.

        The rank that talks with the store removes the directory. If the next fit already uses the directory, the rank
        that talks with the store removes only its own notes. Any other rank removes its own notes only if the directory
        holds no settings, because the rank that talks with the store has left.
        """
        with _changing, suppress(OSError):  # meanwhile, the next fit of this process can't write its settings
            self._directory.find()
            if talks and self._own("verdict"):
                self._directory.remove()
            elif talks or not self.read("verdict"):
                self._directory.remove([key for key in self._written if self._own(key)])
        self._directory.close()

    def _own(self, key: str) -> bool:
        """Return True if this object wrote the note. Another fit of this process may have overwritten the note."""
        try:
            return self._written.get(key) == self._directory.identity(key)
        except OSError as error:
            let_pass(error)
            return False


def remove_earlier(directory: Path) -> None:
    """Remove directories left by killed attempts of this job, and directories unused for a day.

    Removing the directory of a running job does no harm. After a day, all notes in the directory have been read, and
    the job's next note creates the directory again.
    """
    job, _, _ = directory.name.rpartition("-")
    user, _, _ = job.rpartition("-")
    for other in directory.parent.glob(f"{user}-*-[0-9]*") if user else ():
        with suppress(OSError):
            old = unix_time() - other.stat().st_mtime > LEFT_SECONDS
            if other != directory and (old or other.name.rpartition("-")[0] == job):
                earlier = PrivateDirectory(other)
                earlier.find()
                earlier.remove()


def process_began() -> float:
    """Return the wall-clock time at which this process began, or 0 if the time is unknown.

    Ranks of one job write their notes after all processes have begun, because forming the process group waits for all
    processes.
    """
    age = processes.age()
    return 0.0 if age is None else unix_time() - age


class Relay:
    """Notes that the first rank of a machine passes between the store and the other ranks."""

    def __init__(self, node: Node, key: Callable[[int, int], str], kept: int) -> None:
        remove_earlier(node.directory)
        self.folder = FileNotes(node.directory)
        self._ranks, self._others = node.ranks, node.ranks[1:]
        self._key, self._kept = key, kept  # key of a rank's part in a window; number of windows that have keys
        self._passed: dict[str, str] = {}
        self._open: dict[int, _Open] = {}

    def tell(self, notes: Mapping[str, str]) -> None:
        for key, note in notes.items():
            if self._passed.get(key) != note:  # files are written rarely, and read often
                self.folder.write(key, note)
                self._passed[key] = note

    def open(self, window: int, own: bytes, now: float, deadline: float) -> None:
        """Begin to collect the parts of a window. `own` is this rank's part. On rank 0, `own` is empty."""
        self._open[window] = _Open(own, now, deadline)
        for old in [*self._open][: -self._kept]:
            del self._open[old]

    def notes(self, channels: Iterable[str]) -> dict[str, str]:
        """Return the channel notes that the machine's other ranks wrote since the previous call of this method."""
        keys = [rank_key(name, rank) for name in channels for rank in self._others]
        notes = {key: note.decode(errors="replace") for key, note in zip(keys, self.folder.get(keys), strict=True)}
        new = {key: note for key, note in notes.items() if note and self._passed.get(key) != note}
        self._passed.update(new)
        return new

    def collect(self, fit: bytes, now: float) -> dict[str, bytes]:
        """Return notes for the store: the parts of windows that are complete or have waited `GATHER_SECONDS`.

        Parts of other ranks that come later are passed on too, until the deadline of the window.
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
        """Bundle parts into one note, or into several notes if one note would be too large. Return the notes by key."""
        number = max(1, LARGEST // max(1, *[len(part) for part in parts.values()]))
        groups = [self._ranks[start : start + number] for start in range(0, len(self._ranks), number)]
        notes = {self._key(some[0], window): b"".join([parts.get(rank, b"") for rank in some]) for some in groups}
        return {key: bundle_again(note, fit) for key, note in notes.items()}

    @property
    def since(self) -> float | None:
        """Time at which the newest open window was opened. None: no window is open."""
        return max([one.since for one in self._open.values()], default=None)


@dataclass(slots=True)
class _Open:
    """A window that is being collected."""

    own: bytes
    since: float
    deadline: float
    sent: int = -1
    """Number of parts that were passed on, not counting `own`. -1: nothing was passed on."""
