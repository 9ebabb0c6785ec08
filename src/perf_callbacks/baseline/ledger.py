"""Ledger of runs: a file in the user's cache directory with one line of JSON for each run.

Several processes may append at once. `read` skips incomplete lines, and lines with values of a wrong type.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perf_callbacks.kernel.fit.cache import cache_directory
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.records import atomic_file, journal_file
from perf_callbacks.kernel.records.codec import pack, unpack
from perf_callbacks.kernel.records.fit_records import Run
from perf_callbacks.report.run_figures import RunFigures
from perf_callbacks.trials.plan import Identity

MOST_LINES = 1000
"""The newest lines that remain when the ledger is shortened."""

MOST_BYTES = 4_000_000
"""`append` shortens a larger file, and `read` reads only the end of a larger file."""

LONGEST_LINE = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerLine:
    """One run in the ledger."""

    key: str
    """Shared by runs with the same program, model, batch, device and number of ranks."""
    run: RunFigures
    early: RunFigures | None = None
    """Figures of the first steps, with which a later run compares its own; None: the run was too short."""


def path() -> Path:
    return cache_directory() / "runs.jsonl"


def key(run: Run) -> str:
    """The path of the program's file is part of the key."""
    parts = (
        Identity.from_run(run).program,
        run.model,
        run.parameters,
        run.batch,
        run.device,
        run.devices,
        run.world_size,
        run.door,
    )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def append(line: LedgerLine, file: Path) -> None:
    """Append a line unless it is too long. Raise `OSError` if the file can't be written.

    No process waits for a lock. A line that is appended just while another process shortens the ledger is lost. On a
    file system without locks, two processes may shorten the ledger at once, and lines are lost too.
    """
    data = _encoded(line)
    if len(data) > LONGEST_LINE:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with journal_file.opened(file, permissions=0o600) as ledger:
        full = ledger.seek(0, os.SEEK_END) + len(data) > MOST_BYTES
        if full and journal_file.lock(ledger):  # with locks, a single process shortens the file
            with suppress(OSError):  # Windows can't replace an open file
                atomic_file.replace(file, b"".join(map(_encoded, read(file)[-MOST_LINES:])), 0o600)
    with journal_file.opened(file, permissions=0o600) as ledger:
        journal_file.lock(ledger)  # on a network file system, two writers without a lock may write to the same place
        size = ledger.seek(0, os.SEEK_END)
        ledger.seek(max(0, size - 1))
        torn = size > 0 and ledger.read(1) != b"\n"
        ledger.write(b"\n" + data if torn else data)  # a single write: lines of several processes don't mix


def read(file: Path) -> list[LedgerLine]:
    """Return the lines, oldest first; none if the file can't be read."""
    data = b""
    with suppress(OSError), journal_file.opened(file, "r") as ledger:
        size = ledger.seek(0, os.SEEK_END)
        ledger.seek(max(0, size - MOST_BYTES - LONGEST_LINE))
        data = ledger.read(MOST_BYTES + LONGEST_LINE)
    texts = [text for text in data.decode(errors="replace").split("\n") if len(text) <= LONGEST_LINE]
    return [line for line in [unpack(LedgerLine, text) for text in texts] if line is not None]


def last(lines: Iterable[LedgerLine], wanted: str, number: int, *, besides: str) -> Sequence[LedgerLine]:
    """Return the newest lines of a key with early figures, oldest first, but none of the run with the id `besides`.

    Of a run with several attempts, only the newest attempt counts.
    """
    newest = {
        line.run.run_id: line
        for line in lines
        if line.key == wanted and line.run.run_id != besides and line.early is not None
    }
    return [*newest.values()][-number:]


def _encoded(line: LedgerLine) -> bytes:
    return pack(line).encode() + b"\n"
