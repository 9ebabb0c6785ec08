"""The journal on disk: one file per rank, appended to, a line per record."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from perf_callbacks.core.lines import Entry, decode, encode
from perf_callbacks.core.records import Gc, Record, Steps

PENDING = 256
"""Records that are held back before they are written together."""

LONG_PAUSE = 0.001
"""Collections that are shorter than this are no longer written once the journal is full."""

THINNED = 64
"""Of this many blocks of steps one is still written once the journal is full."""


class Journal(Protocol):
    """Where records go."""

    path: Path | None
    """Where that is; None where it is nowhere."""

    def write(self, record: Record) -> None:
        """Take a record."""

    def flush(self) -> None:
        """Write what was taken."""

    def close(self) -> None:
        """Write what was taken and let go."""


class NullJournal:
    """No journal."""

    path: Path | None = None

    def write(self, record: Record) -> None:
        """Forget the record."""

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class FileJournal:
    """Appends to a file. What goes wrong there is told once and ends the journal, not the run.

    Lines are written whole, by one system call for many, past every buffer that a forked worker could write again. A
    file whose last line was torn gets a line end first, so that a later attempt begins on a line of its own.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        complain: Callable[[str], None],
        began: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.path: Path | None = path
        self._max_bytes = max_bytes
        self._complain = complain
        self._clock = clock
        self._began = began
        self._thinned = 0
        self._pending: list[Entry] = []
        self._process = os.getpid()
        self._file: int | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            self._size = os.fstat(self._file).st_size
            if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
                self._put(self._file, b"\n")
        except OSError as error:
            self._give_up(error)

    def write(self, record: Record) -> None:
        """Take a record; it is on disk after `flush`, at the latest after the next 256 records."""
        if self._file is None:
            return
        self._pending.append(Entry(self._clock() - self._began, record))
        if len(self._pending) >= PENDING or isinstance(record, Steps):
            self.flush()

    def flush(self) -> None:
        """Write what was taken."""
        pending, self._pending = self._pending, []
        if self._file is None or not pending or os.getpid() != self._process:
            return
        kept = pending if self._size < self._max_bytes else [entry for entry in pending if self._lasts(entry.record)]
        try:
            self._put(self._file, "".join([encode(entry) + "\n" for entry in kept]).encode())
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Write what was taken and let go of the file. Twice is once."""
        self.flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _put(self, file: int, data: bytes) -> None:
        while data:
            written = os.write(file, data)
            self._size += written
            data = data[written:]

    def _lasts(self, record: Record) -> bool:
        """Whether a record is still written once the journal is full."""
        if isinstance(record, Steps):
            self._thinned += 1
            return self._thinned % THINNED == 1
        return not (isinstance(record, Gc) and record.seconds < LONG_PAUSE)

    def _give_up(self, error: OSError) -> None:
        self._complain(f"no journal at {self.path}: {error.strerror or error}. Training and metrics go on without it.")
        if self._file is not None:
            os.close(self._file)
        self._file = self.path = None
        self._pending = []


def read(path: Path | str) -> Iterator[Entry]:
    """The entries of a journal file, in order. Torn and foreign lines are passed over."""
    with Path(path).open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            entry = decode(line)
            if entry is not None:
                yield entry
