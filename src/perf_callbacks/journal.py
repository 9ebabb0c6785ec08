"""Reader of journals: their records, checked and typed. Imports neither torch nor a framework.

from perf_callbacks.journal import Steps, read

for entry in read("out"):
    if isinstance(entry.record, Steps):
        print(entry.t, sum(entry.record.step_time))
"""

from perf_callbacks.core.codec import Entry, attempts
from perf_callbacks.core.records import (
    SCHEMA,
    Checklist,
    Finding,
    Flops,
    Gc,
    Memory,
    Record,
    Row,
    Run,
    Span,
    Stall,
    Steps,
    Summary,
    Use,
    Window,
)
from perf_callbacks.host.journal_file import files, read

__all__ = [
    "SCHEMA",
    "Checklist",
    "Entry",
    "Finding",
    "Flops",
    "Gc",
    "Memory",
    "Record",
    "Row",
    "Run",
    "Span",
    "Stall",
    "Steps",
    "Summary",
    "Use",
    "Window",
    "attempts",
    "files",
    "read",
]
