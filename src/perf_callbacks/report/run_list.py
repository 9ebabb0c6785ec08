"""List of the runs below a directory: a line for each run."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.records.journal_file import FOLDER
from perf_callbacks.report import run_card, run_title
from perf_callbacks.report.history import finite
from perf_callbacks.report.layout import aligned, clean
from perf_callbacks.report.recorded_run import RecordedRun
from perf_callbacks.report.units import DASH, duration, percent, when

MOST_LEVELS = 12

_HEADINGS = ("started (UTC)", "state", "steps", "step time", "MFU", "job", "host", "run", "directory", "verdict")

_RIGHT = {_HEADINGS.index(name) for name in ("steps", "step time", "MFU")}

_ALWAYS = {"started (UTC)", "state", "steps", "run", "directory"}
"""Shown even if all of their cells are empty."""


def folders(directory: Path, unreadable: list[str]) -> Iterator[Path]:
    """Directories with journals at or below this one. Links and hidden directories are not followed.

    Directories that can't be read are added to `unreadable`.
    """
    below = [(str(directory), 0)]
    while below:
        path, level = below.pop()
        journals, inner = False, []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name.startswith("rank") and entry.name.endswith(".jsonl"):
                        journals = journals or entry.is_file()
                    elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                        inner.append((entry.path, level + 1))
        except OSError as error:
            let_pass(error)
            unreadable.append(path)
        if journals:
            yield Path(path)
        if level < MOST_LEVELS and not (journals and Path(path).name == FOLDER):
            below += sorted(inner, reverse=True)


def table(runs: Sequence[RecordedRun], top: Path) -> list[str]:
    rows = [_row(run, top) for run in runs]
    shown = [
        place for place, name in enumerate(_HEADINGS) if name in _ALWAYS or any(row[place] != DASH for row in rows)
    ]
    cells = [[row[place] for place in shown] for row in [_HEADINGS, *rows]]
    return aligned(cells, right={new for new, place in enumerate(shown) if place in _RIGHT})


def _row(run: RecordedRun, top: Path) -> Sequence[str]:
    record, summary = run.lead.run, run.summary
    state = run_card.state(run) if run.state in {"failed", "hangs", "silent"} else run_card.verdict(run)
    step_seconds, mfu = finite(run.step_seconds), None if summary is None else finite(summary.mfu)
    return (
        when(record.started_unix).removesuffix(" UTC"),
        run.state,
        f"{run.lead.last_step:,}",
        duration(step_seconds),
        f"≥ {percent(mfu)}" if mfu is not None and run.lower_bound else percent(mfu),
        clean(record.job_id, 20),
        clean(record.host, 20),
        clean(run_title.subject(record)),
        clean(run.directory.relative_to(top) if run.directory.is_relative_to(top) else run.directory, 200),
        clean("; ".join(filter(None, [run.lead.full, state])) or None, 300),
    )


def facts(run: RecordedRun) -> dict[str, Any]:
    record = run.lead.run
    about = ("run_id", "attempt", "started_unix", "job_id", "host", "program", "command_line", "model", "world_size")
    values = {name: getattr(record, name) for name in about}
    values["started_unix"] = finite(record.started_unix)
    card = run_card.facts(run)
    verdict = card.pop("verdict")
    return {**card, **values, "verdict": verdict}


def cut(lines: Iterable[str], columns: int | None) -> list[str]:
    """None, as for a pipe: whole lines."""
    return [line if columns is None or len(line) <= columns else f"{line[: columns - 1]}…" for line in lines]
