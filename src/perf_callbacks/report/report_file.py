"""Read journals, and write the report of a fit."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from perf_callbacks.kernel.clock import perf_counter
from perf_callbacks.kernel.records import atomic_file, interim
from perf_callbacks.kernel.records.journal_file import FOLDER, files, read
from perf_callbacks.kernel.settings.config import ConfigError, printable
from perf_callbacks.report.history import FitHistory, gather
from perf_callbacks.report.page import render
from perf_callbacks.report.payload import payload
from perf_callbacks.report.units import duration

NAME = "report.html"


def fits(source: Path) -> list[FitHistory]:
    """Raise `ConfigError` if there are none."""
    try:
        journals = files(source)
        histories = gather(map(read, journals), [partial(interim.read, journal) for journal in journals])
    except OSError as error:
        raise ConfigError(str(error) if error.strerror is None else f"{source}: {error.strerror}") from error
    if not histories:
        raise ConfigError(f"{source}: no fit in the journal, which would begin with a `run` record.")
    return histories


def chosen(histories: list[FitHistory], number: int, within: range | None = None) -> FitHistory:
    """Number 1 is the first fit, and 0 means the last.

    Raise `ConfigError` if it doesn't exist, or if none of its steps is in `within`.
    """
    if not 0 <= number <= len(histories):
        raise ConfigError(f"fit: got {number}, wanted 1 to {len(histories)}, the number of the last fit.")
    fit = histories[number - 1]
    ends = [end for _, attempt in fit.attempts if attempt.step for end in (attempt.step[0], attempt.step[-1])]
    if within is not None and not (ends and min(ends) < within.stop and within.start <= max(ends)):
        has = f"{min(ends):,} to {max(ends):,}" if ends else "none"
        raise ConfigError(f"steps: got {within.start}-{within.stop - 1}, and the fit has {has}.")
    return fit


def default_path(source: Path, name: str) -> Path:
    if not source.is_dir():
        return source.with_name(name)
    inner = source / FOLDER
    return (inner if inner.is_dir() else source) / name


def write_parts(path: Path, parts: Iterable[str]) -> None:
    """Write a file completely or not at all. Raise `ConfigError` if writing fails."""
    try:
        atomic_file.replace(path, map(str.encode, parts))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def write(
    histories: list[FitHistory],
    number: int,
    path: Path,
    within: range | None = None,
    other: FitHistory | None = None,
) -> None:
    chosen(histories, number, within)
    write_parts(path, [render(payload(histories, number, within, other))])


def make(journal: Path, run_id: str, clock: Callable[[], float] = perf_counter) -> str:
    """Write the report of a fit that has just ended beside its journal. Return a line for the log."""
    began = clock()
    histories = fits(journal.parent)
    number = 1 + next((place for place, fit in enumerate(histories) if fit.run_id == run_id), len(histories) - 1)
    path = journal.with_name(NAME)
    write(histories, number, path)
    return f"report {printable(str(path))} (made in {duration(clock() - began)})"
