"""Journals that a command was given: the last fit of each rank."""

from pathlib import Path

from perf_callbacks.core.codec import Entry, attempts
from perf_callbacks.core.config import ConfigError
from perf_callbacks.host import journal_file


def fits(path: str) -> list[list[Entry]]:
    """Return the last fit of each journal in a directory, rank by rank. Raises `ConfigError` if there is none."""
    try:
        found = [attempts(journal_file.read(file)) for file in journal_file.files(Path(path))]
    except OSError as error:
        raise ConfigError(str(error) if error.strerror is None else f"{path}: {error.strerror}") from None
    last = [each[-1] for each in found if each]
    if not last:
        raise ConfigError(f"{path}: no fit in this journal: it has no `run` record that this version can read")
    return last
