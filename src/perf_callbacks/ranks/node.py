"""The ranks of one machine in a large job: only the machine's first rank talks with the store.

It packs the machine's notes, files in a private directory, into one, and passes on settings, windows and channels.
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
from perf_callbacks.kernel.units import DAY_SECONDS
from perf_callbacks.ranks.packed_parts import bundle_again, unpack_bundles
from perf_callbacks.ranks.private_directory import PrivateDirectory
from perf_callbacks.ranks.store import LARGEST, rank_key

GATHER_SECONDS = 3.0
"""The first rank then passes on its machine's data of a window, even if some ranks' are missing."""

CLOCK_SECONDS = 0.2
"""A note is older than this process only by more than this: a file's time is not exact."""

LOOK_SECONDS = 2.0
"""Between two looks of the first rank for notes of channels."""

TRIES = 4
"""Attempts to write a note, while another rank may remove the directory."""

_changing = threading.RLock()  # fits of a process overwrite each other's notes, and remove them


@dataclass(frozen=True, slots=True)
class Node:
    """The ranks of this machine."""

    ranks: range
    rank: int
    directory: Path

    @property
    def talks(self) -> bool:
        """True if this rank talks with the store for all ranks of its machine."""
        return self.rank == self.ranks[0]


def gathered(
    rank: int, world_size: int, local: tuple[int, int] | None, *, many: int, job: Sequence[str], attempt: int = 0
) -> Node | None:
    """Return the `Node` of this machine, or None if every rank of the machine talks with the store directly.

    The machine's ranks, numbered one after the other, must decide alike, without a connection. Different results on two
    machines do no harm, because rank 0 finds out who talks. `job` distinguishes this job from others on the machine.
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
        """Return no notes at all if one is missing."""
        with _changing:
            try:
                self._directory.find()
                return [self._directory.read(key, since=self._began).decode(errors="replace") for key in keys]
            except OSError as error:
                let_pass(error)
                return []

    def get(self, keys: Sequence[str]) -> list[bytes]:
        """Empty for a missing note."""
        notes = dict.fromkeys(keys, b"")
        with _changing, suppress(OSError):
            self._directory.find()
            for key in keys:
                with suppress(OSError):
                    notes[key] = self._directory.read(key, since=self._began)
        return [notes[key] for key in keys]

    def leave(self, *, talks: bool = False) -> None:
        """Remove notes that no rank reads any more, and the directory if this rank talks, and no next fit uses it yet.

        Any other rank removes its notes only if the directory has no settings: the rank that talks has left.
        """
        with _changing, suppress(OSError):  # meanwhile, the next fit of this process can't write its settings
            self._directory.find()
            if talks and self._own("verdict"):
                self._directory.remove()
            elif talks or not self.read("verdict"):
                self._directory.remove([key for key in self._written if self._own(key)])
        self._directory.close()

    def _own(self, key: str) -> bool:
        """Another fit of this process may have overwritten the note."""
        try:
            return self._written.get(key) == self._directory.identity(key)
        except OSError as error:
            let_pass(error)
            return False


def remove_earlier(directory: Path) -> None:
    """Remove directories of killed attempts, or unused for a day: a running job then makes a new one."""
    job, _, _ = directory.name.rpartition("-")
    user, _, _ = job.rpartition("-")
    for other in directory.parent.glob(f"{user}-*-[0-9]*") if user else ():
        with suppress(OSError):
            old = unix_time() - other.stat().st_mtime > DAY_SECONDS
            if other != directory and (old or other.name.rpartition("-")[0] == job):
                earlier = PrivateDirectory(other)
                earlier.find()
                earlier.remove()


def process_began() -> float:
    """Return this process's begin by the wall clock, or 0. Notes are written later: the process group waits for all."""
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
        """Begin to collect the parts of a window. `own`, this rank's part, is empty on rank 0."""
        self._open[window] = _Open(own, now, deadline)
        for old in [*self._open][: -self._kept]:
            del self._open[old]

    def notes(self, channels: Iterable[str]) -> dict[str, str]:
        """Return the channel notes that the machine's other ranks wrote since the previous call."""
        keys = [rank_key(name, rank) for name in channels for rank in self._others]
        notes = {key: note.decode(errors="replace") for key, note in zip(keys, self.folder.get(keys), strict=True)}
        new = {key: note for key, note in notes.items() if note and self._passed.get(key) != note}
        self._passed.update(new)
        return new

    def collect(self, fit: bytes, now: float) -> dict[str, bytes]:
        """Return windows that are complete or have waited `GATHER_SECONDS`, and later parts until the deadline."""
        notes: dict[str, bytes] = {}
        for window, opened in [*self._open.items()]:
            blobs = zip(self._others, self.folder.get([self._key(rank, window) for rank in self._others]), strict=True)
            parts = {
                rank: blob
                for rank, blob in blobs
                if [(part.window, [*part.ranks]) for part in unpack_bundles(blob, fit)] == [(window, [rank])]
            }
            complete = len(parts) == len(self._others)
            if complete or (now - opened.since >= GATHER_SECONDS and len(parts) > opened.sent):
                notes |= self._joined(window, {self._ranks[0]: opened.own, **parts}, fit)
                opened.sent = len(parts)
            if complete or now >= opened.deadline:
                del self._open[window]
        return notes

    def _joined(self, window: int, parts: Mapping[int, bytes], fit: bytes) -> dict[str, bytes]:
        """Bundle parts into one note, or into several if it would be too large."""
        number = max(1, LARGEST // max(1, *[len(part) for part in parts.values()]))
        groups = [self._ranks[start : start + number] for start in range(0, len(self._ranks), number)]
        notes = {self._key(some[0], window): b"".join([parts.get(rank, b"") for rank in some]) for some in groups}
        return {key: bundle_again(note, fit) for key, note in notes.items()}

    @property
    def since(self) -> float | None:
        """Opening of the newest open window."""
        return max([opened.since for opened in self._open.values()], default=None)


@dataclass(slots=True)
class _Open:
    own: bytes
    since: float
    deadline: float
    sent: int = -1
    """Parts that were passed on, without `own`. -1: nothing was."""
