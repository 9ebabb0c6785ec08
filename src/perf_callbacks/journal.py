"""Reader of journals: their records, checked and typed. Imports neither torch nor a framework.

from perf_callbacks.journal import Steps, read

for entry in read("out"):
    if isinstance(entry.record, Steps):
        print(entry.t, entry.record.step[-1], entry.record.step_time[-1])

All steps as columns for pandas, one value per step:

steps = pandas.DataFrame(columns("out"))

A row for each run in and below a directory:

table = pandas.DataFrame(runs("out"))
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.clock import unix_time
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.records import journal_ends
from perf_callbacks.kernel.records.codec import Entry, attempts
from perf_callbacks.kernel.records.fit_records import (
    SCHEMA,
    Checklist,
    Finding,
    Gc,
    Record,
    Row,
    Run,
    Span,
    Steps,
    Summary,
    Window,
)
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.journal_file import files, read
from perf_callbacks.kernel.records.machine_records import HeldMemory, Memory, OutOfMemory, Use
from perf_callbacks.kernel.records.profile_record import Profile, ProfiledCopy, ProfiledOperation
from perf_callbacks.kernel.records.rank_records import Stall, Straggler
from perf_callbacks.kernel.records.signs_of_life import Locks, read_locks
from perf_callbacks.kernel.records.summary_parts import (
    CpuSummary,
    EnergySummary,
    FlopsSummary,
    GcSummary,
    MemorySummary,
    StallSummary,
    StragglerSummary,
)
from perf_callbacks.report import recorded_run, run_figures, run_list
from perf_callbacks.report.recorded_run import RecordedRun

__all__ = [
    "SCHEMA",
    "Checklist",
    "CpuSummary",
    "EnergySummary",
    "Entry",
    "Finding",
    "Flops",
    "FlopsSummary",
    "Gc",
    "GcSummary",
    "HeldMemory",
    "Memory",
    "MemorySummary",
    "OutOfMemory",
    "Profile",
    "ProfiledCopy",
    "ProfiledOperation",
    "Record",
    "Row",
    "Run",
    "Span",
    "Stall",
    "StallSummary",
    "Steps",
    "Straggler",
    "StragglerSummary",
    "Summary",
    "Use",
    "Window",
    "attempts",
    "columns",
    "files",
    "read",
    "runs",
]


def columns(path: Path | str) -> dict[str, list[Any]]:
    """Put the steps of all fits, attempts and ranks into columns of equal length, by name. None: unknown.

    The columns are `run_id`, `attempt` and `rank` of the last `Run` before the steps, then the fields of `Steps`. The
    first three are None if no `Run` comes before the steps, because the beginning of the file was cut off.

    Args:
        path: One file, or an output directory, as for `read`.
    """
    names = [field.name for field in fields(Steps)]
    found: dict[str, list[Any]] = {name: [] for name in ("run_id", "attempt", "rank", *names)}
    for file in files(Path(path)):
        run: Run | None = None
        for entry in read(file):
            record = entry.record
            if isinstance(record, Run):
                run = record
            elif isinstance(record, Steps):
                count = len(record.step)
                for name in ("run_id", "attempt", "rank"):
                    found[name] += [getattr(run, name, None)] * count
                for name in names:
                    found[name] += getattr(record, name) or [None] * count
    return found


def runs(directory: Path | str) -> list[dict[str, Any]]:
    """Return a flat dictionary for each run in and below a directory, oldest first, for pandas. None: unknown.

    The values come from the last attempt of the lowest rank: from its final or latest summary. Times such as
    `step_seconds` and `data_time` are means of the measured steps. Directories that can't be read are left out.

    Args:
        directory: Where to search. Links and hidden directories are not followed.
    """
    locks = read_locks()
    found = recorded_run.merge(one for folder in run_list.folders(Path(directory), []) for one in _in(folder, locks))
    return [
        run_figures.flat(run_figures.of(run.lead.run, run.summary, directory=str(run.directory), state=run.state))
        for run in reversed(found)
    ]


def _in(folder: Path, locks: Locks) -> list[RecordedRun]:
    """Read the lowest rank of the runs in a directory."""
    ends: list[journal_ends.FitEnds] = []
    journals = [path for path in files(folder) if path.parent == folder]
    for path in journals:
        if path.name.split(".")[0] == journals[0].name.split(".")[0]:
            with suppress(OSError):
                ends += journal_ends.read(path, locks)
    return recorded_run.gather(ends, unix_time())
