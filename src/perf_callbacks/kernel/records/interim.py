"""The file `summary<k>.json` beside a journal: the latest summary even of a run that hangs or was killed."""

import stat
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.records import atomic_file
from perf_callbacks.kernel.records.codec import Entry, decode, encode
from perf_callbacks.kernel.records.fit_records import Run, Summary
from perf_callbacks.kernel.records.journal_file import LONGEST_LINE

SLACK_SECONDS = 60.0  # largest expected difference between the clocks of a machine and of its file server


def path_of(journal: Path) -> Path:
    """Return the path of the file beside a journal.

    >>> path_of(Path("out/perf_callbacks/rank3.jsonl")).name, path_of(Path("rank0.2.jsonl")).name
    ('summary3.json', 'summary0.2.json')
    """
    return journal.with_name(f"summary{journal.stem.removeprefix('rank')}.json")


def write(journal: Path, entry: Entry) -> None:
    """Replace the file as a whole or not at all. Raise `OSError` if writing fails."""
    atomic_file.replace(path_of(journal), f"{encode(entry)}\n".encode())


def latest(journal: Path) -> Entry | None:
    path, entry = path_of(journal), None
    with suppress(OSError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= LONGEST_LINE:
            entry = decode(path.read_text(encoding="utf-8", errors="replace"))
    return entry if entry is not None and isinstance(entry.record, Summary) else None


def of_attempt(entry: Entry | None, run: Run) -> Entry | None:
    """None: the entry holds no summary of this attempt."""
    summary = None if entry is None else entry.record
    same = isinstance(summary, Summary) and (summary.run_id, summary.attempt) == (run.run_id, run.attempt)
    return entry if same else None


def read(journal: Path, run: Run) -> Entry | None:
    """Return this attempt's summary; None if the file is older: attempts from one checkpoint share their number."""
    entry = of_attempt(latest(journal), run)
    with suppress(OSError):
        if path_of(journal).stat().st_mtime < run.started_unix - SLACK_SECONDS:
            return None
    return entry
