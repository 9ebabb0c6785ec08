"""The journal on disk: one file per rank, appended to, a line per record."""

import errno
import os
import re
import stat
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from perf_callbacks.kernel.clock import perf_counter
from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.kernel.records.codec import Entry, encode, entries
from perf_callbacks.kernel.records.file_locks import lock, unlock
from perf_callbacks.kernel.records.fit_records import Checklist, Flops, Gc, Record, Run, Stall, Steps, Summary
from perf_callbacks.kernel.records.machine_records import Memory

AT_ONCE = (Run, Checklist, Flops, Summary, Stall, Memory)
"""Records that are on disk when `write` returns. There are few of them."""

SPACING_SECONDS = 0.1
"""Other records are too, unless something was written as recently as this: some loops evaluate in every step."""

PENDING = 256
"""Records that are held back before they are written together."""

MOST_PENDING = 4096
"""Records that are kept while the disk does not answer; the oldest go first."""

CLOSE_SECONDS = 1.0
"""How long the end of a fit may wait for another thread's write."""

LONG_PAUSE = 0.001
"""Collections that are shorter than this are no longer written once the journal is full."""

THINNED = 64
"""Of this many blocks of steps one is still written once the journal is full."""

MOST_WRITERS = 1000
"""Writers that may share a directory."""

FOLDER = "perf_callbacks"
"""The folder of the journals in an output directory."""

_NAME = re.compile(r"rank(\d{1,9})(?:\.(\d{1,9}))?\.jsonl")


LONGEST_LINE = 4_000_000
"""Bytes of a line beyond which it is no record: a file with holes has lines of any length."""

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class Journal:
    """A place for records. This one forgets them."""

    path: Path | None = None
    """The file; None where there is none."""

    def write(self, record: Record) -> None:
        """Take a record."""

    def flush(self) -> None:
        """Write what was taken."""

    def close(self) -> None:
        """Write what was taken and let go."""


class _File(FileIO):
    """A file that its last reference closes without a complaint: an interrupt may come between any two lines."""

    def __del__(self) -> None:
        self.close()


def _opened(path: Path) -> _File:
    """Open a regular file to append to. A link could lead to any file of the user, and a pipe could wait for ever."""
    if not _NO_LINK and path.is_symlink():  # Windows
        raise OSError(errno.ELOOP, "it is a symbolic link")
    file = _File(path, "a+", opener=lambda name, flags: os.open(name, flags | _NO_LINK, 0o666))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("it is no regular file")
    return file


class FileJournal(Journal):
    """Appends to a file. A failure there is told once and ends the journal, not the run.

    Lines are written whole, by one system call for many, past every buffer that a forked worker could write again. A
    file whose last line was torn gets a line end first, so that a later attempt begins on a line of its own. The file
    is created with its first record and locked: where another writer holds `rank0.jsonl`, this one takes
    `rank0.2.jsonl`, and so on. If the file is deleted, a new one takes its place and begins with the `run` record.

    Two threads may write, and a collection may write in the middle of a write. So nobody waits for the lock: a thread
    that can't have it leaves its record to the one that holds it, which looks for more before it is done.
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
        self._wanted = path
        self._where = ""
        self._max_bytes = max_bytes
        self._complain = complain
        self._clock = clock
        self._began = began
        self._size = 0
        self._thinned = 0
        self._written_at = -SPACING_SECONDS
        self._opening = ""
        self._pending: deque[str] = deque(maxlen=MOST_PENDING)
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._file: _File | None = None
        self._replaced = False
        self._writing = threading.Lock()
        self._writer: int | None = None
        self._closing = self._done = False
        _all.add(self)

    def write(self, record: Record) -> None:
        """Take a record. Collections wait for the next write of something else, or for `flush`."""
        if self._closing or self._done or not self._lasts(record):
            return
        now = self._clock()
        line = encode(Entry(now - self._began, record)) + "\n"
        if isinstance(record, Run):
            self._opening = line
        self._pending.append(line)
        soon = not isinstance(record, Gc) and now - self._written_at >= SPACING_SECONDS
        if soon or isinstance(record, AT_ONCE) or len(self._pending) >= PENDING:
            self.flush()

    def flush(self) -> None:
        """Write what was taken, unless a write is under way, in another thread or further up in this one.

        A file that was deleted is created again by the training thread only: in any other thread of ours that could
        be in the midst of the deletion of its directory.
        """
        while (self._pending or self._closing) and not self._done and self._writing.acquire(blocking=False):
            try:
                more = self._drain()
            finally:
                self._writing.release()
            if not more:
                return

    def close(self) -> None:
        """Write what was taken and let go of the file. Twice is once."""
        self._closing = True
        if self._done or self._writer == threading.get_ident():
            return  # who is writing lets go of the file
        held = self._writing.acquire(timeout=CLOSE_SECONDS)
        try:
            if held or self._writer is None:  # an interrupt may have taken the lock along
                self._drain()
        finally:
            if held:
                self._writing.release()

    def disown(self) -> None:
        """Close the file in a forked child, which holds it open and locked otherwise when its parent is gone."""
        self._done = True
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _drain(self) -> bool:
        """Write what is pending, with the lock held. False: it has to wait."""
        self._writer = threading.get_ident()
        try:
            if os.getpid() != self._process:
                return False
            if self._pending and not self._done:
                if self._found(create=threading.get_ident() == self._thread):
                    self._put("".join([self._pending.popleft() for _ in range(len(self._pending))]))
                elif not self._closing:
                    return False
        except OSError as error:
            let_pass(error)
            self._give_up(error)
        finally:
            self._writer = None
        if self._closing:
            self._let_go()
        return True

    def _open(self) -> None:
        """Open and lock the first file that nobody else writes."""
        wanted, first = self._wanted, Path(self._where or self._wanted).absolute()  # the working directory may change
        first.parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, MOST_WRITERS):
            name = wanted.name if number == 1 else f"{wanted.stem}.{number}{wanted.suffix}"
            where = first.with_name(name)
            file = _opened(where)
            if lock(file.fileno()):
                break
            file.close()
        else:
            raise OSError(f"{MOST_WRITERS} others write there")
        if number > 1 and not self._replaced:
            self._complain(f"another run writes {wanted}: the journal of this one is {name} beside it.")
        self._file, self._where, self.path = file, str(where), wanted.with_name(name)
        self._size = file.seek(0, os.SEEK_END)
        if self._size:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                self._put("\n")

    def _found(self, *, create: bool) -> bool:
        """See to it that there is a file to write to."""
        if self._file is None:
            self._open()
        elif self._is_deleted():
            if not create:
                return False
            self._replace()
        return True

    def _is_deleted(self) -> bool:
        """Look whether the file is still where it was."""
        try:
            os.stat(self._where)  # noqa: PTH116 it is not a Path
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:  # a disk that does not say so now may say it later
            let_pass(error)
            return False
        return self._file is not None and os.fstat(self._file.fileno()).st_nlink == 0

    def _replace(self) -> None:
        """Begin a new file where the old one was."""
        if not self._replaced:
            self._complain(f"{self.path} was deleted while it was written: a new one goes on from here.")
        self._replaced = True
        self._release()
        self._open()
        self._put(self._opening)

    def _put(self, lines: str) -> None:
        data = lines.encode()
        while data and self._file is not None:
            written = os.write(self._file.fileno(), data)
            self._size += written
            data = data[written:]
        self._written_at = self._clock()

    def _lasts(self, record: Record) -> bool:
        """Decide on a record: once the journal is full, only some are still written."""
        if self._size < self._max_bytes:
            return True
        if isinstance(record, Steps):
            self._thinned += 1
            return self._thinned % THINNED == 1
        return not (isinstance(record, Gc) and record.seconds < LONG_PAUSE)

    def _give_up(self, error: OSError) -> None:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or error
        self._complain(f"no journal at {self.path}: {reason}. Training and metrics go on without it.")
        self.path = None
        self._let_go()

    def _let_go(self) -> None:
        self._done = True
        self._pending.clear()
        self._release()

    def _release(self) -> None:
        file = self._file
        if file is not None:
            try:
                unlock(file.fileno())
            finally:  # an interrupt too: nobody else knows of the file
                self._file = None
                file.close()


_all: "weakref.WeakSet[FileJournal]" = weakref.WeakSet()


def _in_child() -> None:
    with suppress(Exception):  # nothing of ours keeps a worker from its work
        for journal in [*_all]:
            journal.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def read(path: Path | str) -> Iterator[Entry]:
    """The entries of a journal, in order. Torn and foreign lines are passed over, and those with wrong types.

    Args:
        path: One file, or an output directory: then the files in it, rank by rank.
    """
    return chain.from_iterable(map(_entries, files(Path(path))))


def files(path: Path) -> list[Path]:
    """The journals in an output directory or its `perf_callbacks`, rank by rank; a file is its own."""
    if not path.is_dir():
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise OSError(f"{path}: it is no regular file")
        return [path]
    found = {
        journal: _NAME.fullmatch(journal.name) for inner in (path, path / FOLDER) for journal in inner.glob("rank*")
    }
    named = [
        (int(match[1]), int(match[2] or 1), journal) for journal, match in found.items() if match and journal.is_file()
    ]
    if not named:
        raise FileNotFoundError(f"no journal in {path}: a run writes {FOLDER}/rank<k>.jsonl into its output directory")
    return [journal for _, _, journal in sorted(named)]


def _entries(path: Path) -> Iterator[Entry]:
    with path.open("rb", buffering=1_000_000) as file:
        yield from entries(_lines(file))


def _lines(file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a file, without those that are too long."""
    whole = True
    while line := file.readline(LONGEST_LINE):
        ends = line.endswith(b"\n")
        if whole and (ends or len(line) < LONGEST_LINE):
            yield line.decode(errors="replace")
        whole = ends
