"""Journal on disk: an append-only file per rank, one line per record."""

import errno
import os
import re
import stat
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from io import FileIO
from itertools import chain, count
from pathlib import Path
from typing import BinaryIO

from perf_callbacks.kernel.clock import CLOSE_SECONDS, perf_counter
from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.kernel.records.codec import Entry, decode, encode
from perf_callbacks.kernel.records.fit_records import Checklist, Gc, Record, Run, Steps, Summary
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.machine_records import Memory, OutOfMemory
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.kernel.records.rank_records import Stall

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

AT_ONCE = (Run, Checklist, Flops, Summary, Stall, Memory, OutOfMemory, Profile)
"""Rare records, which `write` writes to the disk at once."""

SPACING_SECONDS = 0.1
"""Between two writes of other records. Some loops write one in every step, such as an evaluation."""

PENDING = 256  # records; then a write begins

MOST_PENDING = 4096
"""Records that are kept while the disk doesn't answer. The oldest are dropped first."""

LONG_PAUSE = 0.001  # seconds; once the journal is full, shorter collections are no longer written

FOLDER = "perf_callbacks"
"""Of the journals, in an output directory."""

_NAME = re.compile(r"rank(\d{1,9})(?:\.(\d{1,9}))?\.jsonl")


LONGEST_LINE = 4_000_000
"""Bytes of the longest line that is read. A sparse file may have longer ones, which are no records."""

_NO_LINK, _NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)


class Journal:
    """Destination of records. This base class drops them."""

    path: Path | None = None
    """None: no file is written."""

    def write(self, record: Record) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class _File(FileIO):
    """Python closes it without a warning, because an interrupt may prevent the call of `close`."""

    def __del__(self) -> None:
        self.close()


def opened(path: Path, mode: str = "a+", permissions: int = 0o666) -> _File:
    """Open a regular file. A link could lead to any file of the user, and a pipe could block for ever."""
    if not _NO_LINK and path.is_symlink():  # Windows
        raise OSError(errno.ELOOP, "it is a symbolic link")
    file = _File(path, mode, opener=lambda name, flags: os.open(name, flags | _NO_LINK | _NO_WAIT, permissions))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("it is not a regular file")
    return file


def lock(file: FileIO) -> bool:
    """Return False if another writer, even of this process, holds the lock; True also where there are no locks."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        let_pass(error)
    return True


def _unlock(file: FileIO) -> None:
    """Release the lock now: closing doesn't, while a forked child has the file open."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


class FileJournal(Journal):
    """Appends records to a file. A disk error is logged once and ends the journal, not the run.

    One system call writes many whole lines. The file has no buffer, which a forked worker could write a second time. If
    the final line is torn, a line end is written first. The file is created and locked with its first record. If
    another writer has locked `rank0.jsonl`, this journal uses `rank0.2.jsonl`, and so on.

    Two threads may call `write` at once, and a garbage collection may call it within itself. So no `write` waits for
    the lock: a thread that doesn't get it leaves its record to the holder, which looks for more before it returns.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        complain: Callable[[str], None],
        began: float,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._complain = complain
        self._clock = clock
        self._began = began
        self._size = 0
        self._written_at = -SPACING_SECONDS
        self._pending: deque[str] = deque(maxlen=MOST_PENDING)
        self._file: _File | None = None
        self._writing = threading.Lock()
        self._writer: int | None = None
        self._closing = self._done = self._full = False
        _all.add(self)

    def write(self, record: Record) -> None:
        """A `Gc` record is held back until another record is written, or until `flush`."""
        if self._closing or self._done or not self._lasts(record):
            return
        now = self._clock()
        self._pending.append(encode(Entry(now - self._began, record)) + "\n")
        soon = not isinstance(record, Gc) and now - self._written_at >= SPACING_SECONDS
        if soon:  # a `flush` doesn't count: a step that ended just after the watchdog's would wait for its next tick
            self._written_at = now
        if soon or isinstance(record, AT_ONCE) or len(self._pending) >= PENDING:
            self.flush()

    def flush(self) -> None:
        """Write the accepted records, unless a write is already under way in this thread or another."""
        while (self._pending or self._closing) and not self._done and self._writing.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._writing.release()

    def close(self) -> None:
        """Idempotent."""
        self._closing = True
        if self._done or self._writer == threading.get_ident():
            return  # the running write closes the file
        held = self._writing.acquire(timeout=CLOSE_SECONDS)
        try:
            if held or self._writer is None:  # an interrupt may have left the lock acquired
                self._drain()
        finally:
            if held:
                self._writing.release()

    def disown(self) -> None:
        """Close it in a forked child, or it stays locked after the parent's death; don't unlock the shared lock."""
        self._done = True
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _drain(self) -> None:
        """The caller holds the lock."""
        self._writer = threading.get_ident()
        try:
            if self._pending and not self._done:
                if self._file is None and self.path is not None:
                    self._open(self.path)
                self._put("".join([self._pending.popleft() for _ in range(len(self._pending))]))
                if not self._full and self._size >= self._max_bytes:
                    self._full = True
                    why = "is full (max_journal_mb): it gets no more steps. Metrics and summary go on."
                    self._complain(f"the journal {self.path} {why}")
        except OSError as error:
            let_pass(error)
            self._give_up(error)
        finally:
            self._writer = None
        if self._closing:
            self._let_go()

    def _open(self, wanted: Path) -> None:
        """Open and lock the first file that no other writer has locked."""
        wanted.parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            name = wanted.name if number == 1 else f"{wanted.stem}.{number}{wanted.suffix}"
            file = opened(wanted.with_name(name))
            if lock(file):
                break
            file.close()
        if number > 1:
            self._complain(f"another run writes {wanted}, so this run writes {name} beside it.")
        self._file, self.path = file, wanted.with_name(name)
        self._size = file.seek(0, os.SEEK_END)
        if self._size:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                self._put("\n")

    def _put(self, lines: str) -> None:
        data = lines.encode()
        while data and self._file is not None:
            written = os.write(self._file.fileno(), data)
            self._size += written
            data = data[written:]

    def _lasts(self, record: Record) -> bool:
        """Return False for steps and short collections once the journal is full."""
        if self._size < self._max_bytes:
            return True
        return not isinstance(record, Steps) and not (isinstance(record, Gc) and record.seconds < LONG_PAUSE)

    def _give_up(self, error: OSError) -> None:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or error
        self._complain(f"no journal at {self.path}: {reason}. Training and metrics go on without it.")
        self.path = None
        self._let_go()

    def _let_go(self) -> None:
        self._done = True
        self._pending.clear()
        file = self._file
        if file is not None:
            try:
                _unlock(file)
            finally:  # after an interrupt too: no other object refers to the file
                self._file = None
                file.close()


_all: "weakref.WeakSet[FileJournal]" = weakref.WeakSet()


def _in_child() -> None:
    with suppress(Exception):  # our errors must not stop a worker
        for journal in [*_all]:
            journal.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def read(path: Path | str) -> Iterator[Entry]:
    """Yield the entries of a journal in file order. Lines that hold no valid record are skipped.

    Args:
        path: A journal file, or an output directory. The journals in a directory are read rank by rank.
    """
    return chain.from_iterable(map(_entries, files(Path(path))))


def files(path: Path) -> list[Path]:
    """List the journals in an output directory, or in its folder `perf_callbacks`, by rank.

    If `path` is a file, return only this path.
    """
    if not path.is_dir():
        if path.exists() and not path.is_file():  # reading a pipe would block
            raise OSError(f"{path}: it is not a regular file")
        return [path]
    journals = {
        journal: _NAME.fullmatch(journal.name) for inner in (path, path / FOLDER) for journal in inner.glob("rank*")
    }
    named = [
        (int(match[1]), int(match[2] or 1), journal)
        for journal, match in journals.items()
        if match and journal.is_file()
    ]
    if not named:
        raise FileNotFoundError(f"no journal in {path}: a run writes {FOLDER}/rank<k>.jsonl into its output directory")
    return [journal for _, _, journal in sorted(named)]


def files_of_lowest_rank(folder: Path) -> list[Path]:
    """Return the journals of the lowest rank; several if fits wrote at the same time."""
    journals: list[Path] = []
    with suppress(OSError):
        journals = [path for path in files(folder) if path.parent == folder]
    rank = journals[0].name.split(".")[0] if journals else ""
    return [path for path in journals if path.name.split(".")[0] == rank]


def _entries(path: Path) -> Iterator[Entry]:
    with path.open("rb", buffering=1_000_000) as file:
        yield from filter(None, map(decode, _lines(file)))


def _lines(file: BinaryIO) -> Iterator[str]:
    """Leave out lines that are too long."""
    whole = True
    while line := file.readline(LONGEST_LINE):
        ends = line.endswith(b"\n")
        if whole and (ends or len(line) < LONGEST_LINE):
            yield line.decode(errors="replace")
        whole = ends
