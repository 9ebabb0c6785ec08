"""Read the beginning and the end of each fit in a journal, once or while the journal grows."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.records import interim
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Steps
from perf_callbacks.kernel.records.journal_ends import (
    END_BYTES,
    OPENING,
    EndReader,
    FitEnds,
    Line,
    lines_of,
    with_lines,
    with_summary,
)
from perf_callbacks.kernel.records.signs_of_life import Locks, Signs, exists, local_process, signs

Version = tuple[int, int, int, int]
"""Device number, inode number, size and modification time of a file."""


def read(journal: Path, locks: Locks) -> list[FitEnds]:
    """Read the beginning and the end of each fit in a journal, the oldest fit first.

    If a large journal has several fits, only fits that begin near the end are found. Raise `OSError` if the file can't
    be read.
    """
    return FollowedJournal(journal).read(locks)


class FollowedJournals:
    """Reads journals like `read`, and keeps the results, so that the next reading reads only new bytes."""

    def __init__(self) -> None:
        self._known: dict[Path, FollowedJournal] = {}

    def read(self, journal: Path, locks: Locks) -> list[FitEnds]:
        """Read the beginning and the end of each fit in a journal, the oldest fit first.

        Raise `OSError` if the file can't be read.
        """
        followed = self._known.setdefault(journal, FollowedJournal(journal))
        try:
            return followed.read(locks)
        except OSError:
            del self._known[journal]
            raise


class FollowedJournal:
    """One journal, with what was read from it so far. Each further reading reads only new bytes."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._beside_path = interim.path_of(journal)
        self._version: Version | None = None
        self._beside_version: Version | None = None
        self._beside: Entry | None = None
        self._fits: list[FitEnds] = []
        self._start = 0
        """Byte offset at which the last fit begins in the file."""
        self._lines: list[Line] = []
        """Lines near the end of the last fit in the file."""
        self._owner: int | None = None
        """Id of the process that holds the journal's lock, or that wrote the last fit."""
        self._owned: tuple[str, int, float] | None = None
        """Run id, attempt and start of the fit that `_owner` wrote."""

    def read(self, locks: Locks) -> list[FitEnds]:
        """Read the new bytes of the journal, and return the beginning and end of each fit.

        Raise `OSError` if the file is gone.
        """
        found, beside = self._journal.stat(), None
        with suppress(OSError):
            beside = self._beside_path.stat()
        beside_version = None if beside is None else _version(beside)
        summary_is_new = beside_version != self._beside_version
        if summary_is_new:
            self._beside, self._beside_version = interim.latest(self._journal), beside_version
        version = _version(found)
        if version != self._version:
            if not self._grew(version):
                self._read_ends()
            self._version = version
        elif summary_is_new:
            self._update()
        if self._fits:
            self._live(signs(found, beside, locks), damaged=self._beside is None and beside is not None)
        return self._fits

    def _live(self, alive: Signs, *, damaged: bool) -> None:
        """Update `signs` and `damaged_summary`, which can change while the journal doesn't grow."""
        last = self._fits[-1]
        fit = last.run.run_id, last.run.attempt, last.run.started_unix
        if fit != self._owned:
            self._owned, self._owner = fit, None
        owner = self._owner or local_process(last.run) if last.final is None else None
        self._owner = alive.pid or owner
        if alive.pid is None and owner is not None:  # a full disk ends the journal, not the process
            lives = exists(owner, last.run.uptime_seconds)
            alive = replace(alive, pid=owner) if lives else replace(alive, gone=owner)
        if (last.signs, last.damaged_summary) != (alive, damaged):
            self._fits = [*self._fits[:-1], replace(last, signs=alive, damaged_summary=damaged)]

    def _read_ends(self) -> None:
        with self._journal.open("rb") as file:
            fits = EndReader(file, self._journal, self._beside).fits()
        self._fits = [ends for _, ends, _ in fits]
        self._start, self._lines = 0, []
        if fits:
            self._start, ends, lines = fits[-1]
            self._lines = _without_old_steps(lines, ends)

    def _grew(self, version: Version) -> bool:
        """Read the new bytes of the last fit. Return False if the whole file must be read again."""
        start, old = self._start, self._version
        if old is None or not self._lines or version[:2] != old[:2]:
            return False
        size, begin = version[2], self._lines[-1].start  # the last line may have been torn
        opened = self._fits[-1].last(Steps) is not None or old[2] - start >= END_BYTES
        usual = self._lines[0].start >= max(start, old[2] - END_BYTES)  # False: a line was longer
        if not opened or not usual or not old[2] < size <= begin + END_BYTES:
            return False
        with self._journal.open("rb") as file:
            file.seek(max(0, begin - 1))
            data = file.read(size - begin + 1)
        if OPENING in data or (begin > 0 and data[:1] != b"\n"):
            return False
        near = max(start, size - END_BYTES)
        lines = [*self._lines[:-1], *lines_of(data[1:], begin)]
        self._lines = [line for line in lines if line.start >= near]
        if not any([line.entry for line in self._lines]):
            return False
        self._update()
        self._lines = _without_old_steps(self._lines, self._fits[-1])
        return True

    def _update(self) -> None:
        """Build the `FitEnds` of the last fit from its lines and from the summary beside the journal."""
        if self._fits:
            earlier = [with_summary(ends, self._beside) for ends in self._fits[:-1]]
            self._fits = [*earlier, with_lines(self._fits[-1], self._lines, self._beside)]


def _without_old_steps(lines: Iterable[Line], ends: FitEnds) -> list[Line]:
    """Drop records that are not in `ends`, to save memory if many journals are followed."""
    held = {id(entry) for entry in ends.latest}
    return [line for line in lines if line.entry is None or id(line.entry) in held]


def _version(found: os.stat_result) -> Version:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
