"""Read the beginning and the end of each fit in a journal, without the steps between them."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import BinaryIO, TypeVar

from perf_callbacks.kernel.records import interim
from perf_callbacks.kernel.records.codec import Entry, decode
from perf_callbacks.kernel.records.fit_records import Checklist, Record, Run, Steps, Summary
from perf_callbacks.kernel.records.journal_file import LONGEST_LINE
from perf_callbacks.kernel.records.signs_of_life import Signs

T = TypeVar("T", bound=Record)

END_BYTES = 65_536
"""Number of bytes that are read at the beginning of a fit, and at its end."""

SEARCH_BYTES = 4_000_000
"""A file with several fits is searched for the beginnings of fits in blocks of this many bytes. The search reads blocks
backwards from the end of the file, until a block contains the beginning of a fit."""

MOST_SEARCHED_BYTES = 600_000_000
"""Largest number of bytes that are searched. This limit is more than twice the size that a journal may have by
default."""

KEPT_STEPS = 50
"""Number of steps that are kept from the end of a fit. More steps would need much memory in a list of many runs."""

OPENING = b'\n{"type":"run",'
"""Beginning of a line that opens a fit."""

_SUMMARY = b'{"type":"summary",'


@dataclass(frozen=True, kw_only=True, slots=True)
class FitEnds:
    """Beginning and end of an attempt in a journal."""

    journal: Path
    run: Run
    first: tuple[Entry, ...]
    """Records before the first steps, such as the checklist."""
    latest: tuple[Entry, ...]
    """Records at the end, the oldest first, with about `KEPT_STEPS` steps. A record may be in both `first` and
    `latest`."""
    interim: Entry | None
    """Summary in the file beside the journal. None if the file has no summary of this attempt."""
    unreadable: int
    """Number of lines near the end that hold no record. The last line is not counted, because it may be only partly
    written."""
    signs: Signs | None = None
    """Signs of life of the process that writes the journal. None if a later fit follows in this file."""
    damaged_summary: bool = False
    """True: the file beside the journal holds no summary."""

    def last(self, kind: type[T]) -> T | None:
        """Return the last record of a class. None if no such record is near the end."""
        return next((one.record for one in reversed(self.latest) if isinstance(one.record, kind)), None)

    @property
    def final(self) -> Summary | None:
        """Summary at the end of the attempt. None if the attempt goes on, hangs, or was killed."""
        found = self.last(Summary)
        same = found is not None and (found.run_id, found.attempt) == (self.run.run_id, self.run.attempt)
        return found if same else None

    @property
    def so_far(self) -> Summary | None:
        """Summary so far, from the file beside the journal. None if the file has no summary of this attempt."""
        record = None if self.interim is None else self.interim.record
        return record if isinstance(record, Summary) else None

    @property
    def checklist(self) -> list[Checklist]:
        """Last known record of each item of the checklist."""
        records = [entry.record for entry in (*self.first, *self.latest)]
        return [*{one.item: one for one in records if isinstance(one, Checklist)}.values()]

    @property
    def last_step(self) -> int:
        steps, summary = self.last(Steps), self.final or self.so_far
        known: list[int] = [self.run.step]
        known += steps.step[-1:] if steps is not None else ()
        known += [summary.step] if summary is not None else []
        return max(known)

    @property
    def full(self) -> str:
        """Say that the journal is full and lacks steps. Empty if it has room, or isn't known to lack steps."""
        limit, steps = self.run.config.get("max_journal_mb"), self.last(Steps)
        if self.signs is None or not isinstance(limit, int) or self.signs.size < limit * 1_000_000:
            return ""
        if not self.latest:  # no record is near the end: the file may end with a hole
            return ""
        if steps is None:
            return "the journal is full (max_journal_mb), and lacks the last steps"
        last = max(steps.step, default=0)
        told = f"the journal is full (max_journal_mb), and has no steps after step {last:,}"
        return told if last < self.last_step else ""

    @property
    def seconds(self) -> float:
        return max([entry.t for entry in (*self.latest[-1:], self.interim) if entry is not None], default=0.0)


@dataclass(frozen=True, slots=True)
class Line:
    """A line near the end of a journal."""

    start: int
    """Byte offset of the line in the file."""
    entry: Entry | None
    """None: the line holds no record."""
    blank: bool


FitLines = tuple[int, FitEnds, list[Line]]
"""Byte offset of a fit's `run` record, the beginning and end of the fit, and the lines in its last `END_BYTES`."""


def with_lines(ends: FitEnds, lines: Sequence[Line], beside: Entry | None) -> FitEnds:
    """Return a copy of `ends` in which `lines` gives the latest records, and `beside` gives the summary."""
    return replace(
        ends,
        latest=tuple(_without_old_steps([line.entry for line in lines if line.entry is not None])),
        interim=interim.of_attempt(beside, ends.run),
        unreadable=sum([line.entry is None and not line.blank for line in lines[:-1]]),
    )


def _without_old_steps(entries: Sequence[Entry]) -> list[Entry]:
    kept, number = [], 0
    for entry in reversed(entries):
        if isinstance(entry.record, Steps):
            if number >= KEPT_STEPS:
                continue
            number += len(entry.record.step)
        kept.append(entry)
    return kept[::-1]


def with_summary(ends: FitEnds, beside: Entry | None) -> FitEnds:
    """Return a copy of `ends` with the summary beside the journal, if the summary belongs to the fit."""
    found = interim.of_attempt(beside, ends.run)
    return ends if found is ends.interim else replace(ends, interim=found)


def lines_of(data: bytes, start: int) -> list[Line]:
    """Decode the lines in `data`, which begins at byte `start` of the file. The last line may be torn or empty."""
    found, place = [], start
    for text in data.split(b"\n"):
        found.append(Line(place, _entry(text), text.strip() == b""))
        place += len(text) + 1
    return found


class EndReader:
    """Reads parts of a journal. `beside` is the summary in the file beside the journal."""

    def __init__(self, file: BinaryIO, journal: Path, beside: Entry | None) -> None:
        self._file, self._journal, self._beside = file, journal, beside
        self.size = file.seek(0, os.SEEK_END)

    def fits(self) -> list[FitLines]:
        """Read the beginning and the end of each fit in the journal, the oldest fit first."""
        starts = self.openings()
        found = [self.fit(*place) for place in pairwise([*starts, self.size])]
        return [fit for fit in found if fit is not None]

    def openings(self) -> list[int]:
        """Return the byte offsets at which fits begin. Fits far from the end of a large file may be missing."""
        self._file.seek(0)
        opening = _entry(self._file.readline(END_BYTES))
        run = None if opening is None else opening.record
        first = [0] if isinstance(run, Run) else []
        near = max(0, self.size - END_BYTES)
        if isinstance(run, Run) and not self._search(near, self.size) and self._ends_with(run, near):
            return first
        start = self.size
        found: list[int] = []
        while start > 0 and not found and self.size - start < MOST_SEARCHED_BYTES:
            end, start = start, max(0, start - SEARCH_BYTES)
            found = self._search(start, end)
        return sorted({*(first if start == 0 or not found else ()), *found})

    def fit(self, start: int, end: int) -> FitLines | None:
        """Read the first and last records of the fit between two byte offsets; None without a readable `run` record."""
        near = max(start, end - END_BYTES)
        tail = self._lines(near, end)
        if near > start and not any([line.entry for line in tail]):  # all bytes belong to a longer line
            near = max(start, end - LONGEST_LINE - END_BYTES)
            tail = self._lines(near, end)
        least = max(start, end - MOST_SEARCHED_BYTES)
        while near > least and not any([line.entry for line in tail]):  # the line is too long to be read
            end, near = near, max(start, near - LONGEST_LINE)
            tail = [*self._lines(near, end), Line(end, None, blank=True)]
        head: Iterable[Entry | None]
        if near == start:
            head = [line.entry for line in tail]
        else:
            head = map(_entry, self._data(start, min(end, start + END_BYTES))[0].split(b"\n"))
        entries = (entry for entry in head if entry is not None)
        opening = next(entries, None)
        run = None if opening is None else opening.record
        if not isinstance(run, Run):
            return None
        first = tuple(takewhile(lambda entry: not isinstance(entry.record, Steps), entries))
        ends = FitEnds(journal=self._journal, run=run, first=first, latest=(), interim=None, unreadable=0)
        return start, with_lines(ends, tail, self._beside), tail

    def _ends_with(self, run: Run, near: int) -> bool:
        """Return True if `run` begins the last attempt in the file."""
        data = self._data(near, self.size)[0]
        entries = [_entry(line) for line in data.split(b"\n") if line.startswith(_SUMMARY)]
        summaries = [entry for entry in entries if entry is not None]
        return interim.of_attempt(summaries[-1] if summaries else self._beside, run) is not None

    def _search(self, start: int, end: int) -> list[int]:
        """Return the byte offsets, between `start` and `end`, of all lines that open a fit."""
        self._file.seek(start)
        data, found = self._file.read(end - start + len(OPENING) - 1), []
        place = data.find(OPENING)
        while place >= 0:
            found.append(start + place + 1)
            place = data.find(OPENING, place + 1)
        return found

    def _lines(self, start: int, end: int) -> list[Line]:
        """Read the lines between two byte offsets. A line that begins before the first offset is left out.

        The last line may be torn or empty.
        """
        return lines_of(*self._data(start, end))

    def _data(self, start: int, end: int) -> tuple[bytes, int]:
        """Read the bytes from `start` to `end`, but not the rest of a line that begins before `start`.

        Return the bytes and the offset of the first byte.
        """
        before = max(0, start - 1)
        self._file.seek(before)
        data = self._file.read(end - before)
        rest = data.partition(b"\n")[2] if start else data
        return rest, before + len(data) - len(rest)


def _entry(line: bytes) -> Entry | None:
    return decode(line.decode(errors="replace")) if line else None
