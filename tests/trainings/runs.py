"""What a run has written: the records of its journal, and its card."""

from dataclasses import asdict
from pathlib import Path

from perf_callbacks.kernel.records import codec
from perf_callbacks.kernel.records.fit_records import Steps, Summary
from perf_callbacks.kernel.records.journal_file import read


def unwrapped(card):
    """The lines of a card before they were broken at its width."""
    return card.replace("\n    ", " ")


def attempts(directory, rank=0):
    """The records of each attempt in the journal that was written last; a logger may have one each time."""
    journals = Path(directory).rglob(f"rank{rank}.jsonl")
    parts = codec.attempts(read(max(journals, key=lambda path: path.stat().st_mtime_ns)))
    return [[entry.record for entry in part] for part in parts]


def records(directory, kind, *, attempt=-1, rank=0):
    """The records of one kind in one attempt."""
    return [record for record in attempts(directory, rank)[attempt] if isinstance(record, kind)]


def steps(directory, **which):
    """The steps in the journal of one attempt, each as a mapping."""
    blocks = [
        {name: column for name, column in asdict(block).items() if column}
        for block in records(directory, Steps, **which)
    ]
    return [dict(zip(block, step, strict=True)) for block in blocks for step in zip(*block.values(), strict=True)]


def opened(directory):
    """The record that opens each attempt."""
    return [part[0] for part in attempts(directory)]


def numbers(directory):
    """The number of each attempt, and the step that it goes on from."""
    return [(run.attempt, run.step) for run in opened(directory)]


def totals(directory):
    """Samples and tokens of the whole run at the end of each attempt."""
    summaries = [record for part in attempts(directory) for record in part if isinstance(record, Summary)]
    return [(summary.total_samples, summary.total_tokens) for summary in summaries]
