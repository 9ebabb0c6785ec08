"""Reader of journals, the files to which a run writes its measurements.

The reader checks and types each record. Importing this module imports neither torch nor a training framework.

from perf_callbacks.journal import Steps, read

for entry in read("out"):
    if isinstance(entry.record, Steps):
        print(entry.t, entry.record.step[-1], entry.record.step_time[-1])

A pandas table of all steps is made as follows:

steps = pandas.DataFrame(columns("out"))

A pandas table with one row per run is made as follows:

table = pandas.DataFrame(runs("out"))
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.foreign_errors import suppress
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
from perf_callbacks.kernel.records.summary_parts import (
    CpuSummary,
    EnergySummary,
    FlopsSummary,
    GcSummary,
    MemorySummary,
    StallSummary,
    StragglerSummary,
)
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.report import run_figures
from perf_callbacks.report.recorded_run import RecordedRun
from perf_callbacks.report.run_reader import RunReader

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
    """Return the steps of all fits, attempts and ranks, as a dictionary of columns. Each column has one value per step.

    The columns `run_id`, `attempt` and `rank` come from the `Run` record that precedes the steps in the journal file.
    The other columns are the fields of `Steps`. None stands for an unknown value. If the beginning of a journal was cut
    off, the `Run` record is missing, and the columns `run_id`, `attempt` and `rank` are None.

    Args:
        path: One journal file, or an output directory.
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
    """Return one flat dictionary for each run in a directory and its subdirectories, oldest run first.

    The values come from the most recent attempt of the run. If several ranks have a journal, the values come from the
    rank with the lowest number. None stands for an unknown value. Times such as `step_seconds` and `data_time` are
    means over the measured steps. A directory that can't be read is skipped.

    Args:
        directory: Directory to search, or a single journal. The search skips links and hidden directories.
    """
    found: list[RecordedRun] = []
    with suppress(ConfigError):  # no run
        found = RunReader().below(Path(directory))
    return [
        run_figures.flat(
            run_figures.from_records(run.lead.run, run.summary, directory=str(run.directory), state=run.state)
        )
        for run in reversed(found)
    ]
