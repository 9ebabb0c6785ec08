"""Journals that a command was given: the last attempt of the last fit, rank by rank."""

from pathlib import Path

from perf_callbacks.core.codec import Entry, attempts
from perf_callbacks.core.config import ConfigError
from perf_callbacks.core.records import Run
from perf_callbacks.host import journal_file
from perf_callbacks.report.history import gather


def last_fit(path: str) -> list[list[Entry]]:
    """Return the records of the last fit in a directory: of each rank that took part in its last attempt, that attempt.

    Raises `ConfigError` if there is none.
    """
    try:
        parts = [part for file in journal_file.files(Path(path)) for part in attempts(journal_file.read(file))]
    except OSError as error:
        raise ConfigError(str(error) if error.strerror is None else f"{path}: {error.strerror}") from None
    found = gather([part[:1] for part in parts])
    if not found:
        raise ConfigError(f"{path}: no fit in this journal: it has no `run` record that this version can read")
    runs = [each[-1].run for _, each in sorted(found[-1].ranks.items())]
    last = max(runs, key=lambda run: run.started_unix)
    return [_records(parts, run) for run in runs if (run.world_size, run.step) == (last.world_size, last.step)]


def _records(parts: list[list[Entry]], run: Run) -> list[Entry]:
    """Return the records after a `run` record, which comes twice where a deleted journal was begun again."""
    return [entry for part in parts if part[0].record == run for entry in part]
