"""Reader of journals: their records, checked and typed. Imports neither torch nor a framework.

from perf_callbacks.journal import Steps, read

for entry in read("out"):
    if isinstance(entry.record, Steps):
        print(entry.t, entry.record.step[-1], entry.record.step_time[-1])

All steps as columns, one value per step, such as pandas takes:

steps = pandas.DataFrame(columns("out"))
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.records.codec import Entry, attempts
from perf_callbacks.kernel.records.fit_records import (
    SCHEMA,
    Checklist,
    Finding,
    Flops,
    Gc,
    Record,
    Row,
    Run,
    Span,
    Steps,
    Summary,
    Window,
)
from perf_callbacks.kernel.records.journal_file import files, read
from perf_callbacks.kernel.records.machine_records import Memory, Use
from perf_callbacks.kernel.records.rank_records import Stall, Straggler
from perf_callbacks.kernel.records.summary_parts import (
    EnergySummary,
    FlopsSummary,
    GcSummary,
    MemorySummary,
    StallSummary,
    StragglerSummary,
)

__all__ = [
    "SCHEMA",
    "Checklist",
    "EnergySummary",
    "Entry",
    "Finding",
    "Flops",
    "FlopsSummary",
    "Gc",
    "GcSummary",
    "Memory",
    "MemorySummary",
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
