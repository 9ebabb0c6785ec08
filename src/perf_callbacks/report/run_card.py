"""Card of a recorded run: its state first, then its title and the table of its summary. Card of a notebook."""

import dataclasses
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, TypeVar

from perf_callbacks.kernel.process.stacks import MOST_FRAMES
from perf_callbacks.kernel.records.fit_records import SCHEMA, Summary
from perf_callbacks.kernel.records.interim import path_of
from perf_callbacks.kernel.settings.config import LONGEST_RECORDED
from perf_callbacks.report import cards, run_title
from perf_callbacks.report.history import finite
from perf_callbacks.report.layout import COLUMNS, INDENT, clean, listed, wrapped
from perf_callbacks.report.recorded_run import RecordedRun, stalled_seconds, where
from perf_callbacks.report.units import duration, long_duration, when

T = TypeVar("T")

MOST_STACKS = 2

_HTML = '<div><b>{}</b><pre style="white-space: pre-wrap; margin: 0.5em 0 0">{}</pre></div>'
"""The style is inside the element, because a style sheet would change the whole notebook."""


def render(run: RecordedRun, columns: int = COLUMNS) -> str:
    width = columns - INDENT
    lines = wrapped(f"{state(run)}.", width=columns)
    lines += [f"  {line}" for line in stacks(run)]
    lines += [f"  {line}" for part in _about(run) for line in wrapped(part, width=width)]
    lines += [f"  {line}" for note in notes(run) for line in wrapped(f"Note: {note}.", width=width)]
    return "\n".join([*lines, "", _table(run, columns)])


def state(run: RecordedRun) -> str:
    step = f"step {run.lead.last_step:,}"
    lasted = long_duration(finite(run.lead.seconds))
    ago = f"{long_duration(max(0.0, finite(run.now - run.last_sign) or 0.0))} ago"
    pid = None if run.lead.signs is None else run.lead.signs.pid
    process = "" if pid is None or run.lead.run.world_size > 1 else f" as process {pid}"
    if run.state == "ended":
        return f"ended {ago}, after {step} and {lasted}"
    if run.state == "failed":
        return f"stopped early {ago}, after {step} and {lasted}: {_text(run.failure or '')}"
    if run.state == "running":
        return f"running{process}: {step} after {lasted}, last sign of life {ago}"
    if run.state == "hangs":
        return f"hangs{process} {_hang(run)}. Not killed: last sign of life {ago}"
    return f"no sign of life since {when(run.last_sign)} ({ago}): {_silence(run)}"


def _hang(run: RecordedRun) -> str:
    lasted = None if run.hang is None else stalled_seconds(run.hang)
    seconds = "" if lasted is None else f"for {long_duration(finite(lasted))} "
    sentences = None if run.hang is None else where(run.hang)
    places = [f"rank {stall.rank} is in {stall.stage}" for stall, _ in run.hanging]
    place = _text(sentences or ", ".join(places)).rstrip(".")
    return f"{seconds}after step {run.lead.last_step:,}" + (f": {place}" if place else "")


def _silence(run: RecordedRun) -> str:
    signs = run.lead.signs
    if signs is None:
        why = "ended without a summary, and a later fit writes the same journal"
    elif signs.pid is not None:
        why = f"process {signs.pid} is alive: it is stopped, runs C code that holds the GIL, or can't write to its disk"
    elif signs.gone is not None:
        why = f"process {signs.gone} is gone: it was killed, crashed, or ended while its disk was full"
    else:
        why = "killed, or its machine is gone, or its disk is gone or full"
    if run.hang is not None:
        return f"{why}. The run hung {_hang(run)}"
    others = f". Measuring stopped early: {_text(run.failure)}" if run.failure is not None else ""
    return f"{why}, at step {run.lead.last_step:,} after {long_duration(finite(run.lead.seconds))}{others}"


def stacks(run: RecordedRun, most_frames: int = MOST_FRAMES) -> Iterator[str]:
    for stall, pid in run.hanging[:MOST_STACKS]:
        if stall.stack:
            who = f"rank {stall.rank} in {clean(stall.stage)}" if run.lead.run.world_size > 1 else clean(stall.stage)
            process = "" if pid is None else f" (process {pid})"
            yield f"stack of {who}{process}, innermost line last:"
            yield from (f"  {clean(frame, LONGEST_RECORDED)}" for frame in stall.stack[-most_frames:])
    others = [stall.rank for stall, _ in run.hanging[MOST_STACKS:]]
    if others:
        yield f"stacks of ranks {listed(others)} are in their journals"


def _about(run: RecordedRun) -> Iterator[str]:
    record = run.lead.run
    ranks = max(record.world_size, len(run.ranks))
    yield clean(run_title.title(record), LONGEST_RECORDED)
    yield clean(run_title.details(record, ranks), LONGEST_RECORDED)
    started = when(record.started_unix)
    yield f"{clean(run.directory, LONGEST_RECORDED)}, started {started}, run {clean(record.run_id)}"


def notes(run: RecordedRun) -> Iterator[str]:
    silent = [ends.run.rank for ends in run.ranks if ends.final is None and not run.lives(ends)]
    if run.state != "silent" and silent:
        yield f"ranks without a summary and without a sign of life: {listed(silent)}"
    if run.missing:
        yield f"ranks without a journal: {listed(run.missing)}"
    damaged = [ends for ends in run.ranks if ends.damaged_summary]
    if damaged:
        yield f"{path_of(damaged[0].journal).name} can't be read, {len(damaged):,} of {len(run.ranks):,} such files"
    if run.lead.full:
        yield run.lead.full
    lines = sum(ends.unreadable for ends in run.ranks)
    if lines:
        yield f"lines of the journals that can't be read: {lines:,}"
    for schema in sorted({ends.run.schema for ends in run.ranks} - {SCHEMA}):
        yield f"another version wrote the journal (schema {schema}, not {SCHEMA}); records that differ are not shown"


def _table(run: RecordedRun, columns: int) -> str:
    summary, final = run.summary, run.lead.final is not None
    took = None if final else run.last_seconds
    pace = "" if took is None else f" The last steps took {duration(finite(took))} each."
    if summary is None or not (summary.steps or final):
        return f"{cards.OURS}no {'summary' if summary is None else 'step is in the summary'} on disk.{pace}"
    try:
        table = cards.closing(cleaned(summary), cleaned(run.lead.checklist), columns)
    except (ArithmeticError, LookupError, ValueError):
        return f"{cards.OURS}no table: values of the summary contradict each other."
    if final:
        return table
    newer = run.lead.last_step > summary.step
    return f"{table}\n  so far, up to step {summary.step:,}" + (f".{pace}" if newer and pace else "")


def verdict(run: RecordedRun) -> str:
    """Empty: too little is known."""
    summary: Summary | None = run.summary
    try:
        return "" if summary is None else " ".join(cards.verdict(cleaned(summary)).split())
    except (ArithmeticError, LookupError, ValueError):
        return ""


def facts(run: RecordedRun) -> dict[str, Any]:
    hung = run.hang
    summary = run.summary
    stall = None
    if hung is not None:
        stall = {
            "seconds": finite(stalled_seconds(hung)),
            "where": where(hung),
            "ranks": [
                {"rank": stall.rank, "stage": stall.stage, "stack": [*stall.stack], "pid": pid}
                for stall, pid in run.hanging
            ],
        }
    return {
        "title": run_title.title(run.lead.run),
        "state": run.state,
        "reason": run.failure,
        "directory": str(run.directory),
        "last_sign_unix": finite(run.last_sign),
        "pid": None if run.lead.signs is None else run.lead.signs.pid,
        "step": run.lead.last_step,
        "step_seconds": finite(run.step_seconds),
        "mfu": None if summary is None else finite(summary.mfu),
        "mfu_is_lower_bound": run.lower_bound,
        "stall": stall,
        "verdict": verdict(run) or None,
    }


def html(summary: Summary) -> str | None:
    """None if values of the summary contradict each other."""
    try:
        first, *others = cards.lines(cleaned(summary))
    except (ArithmeticError, LookupError, ValueError):
        return None
    return _HTML.format(escape(first), escape("\n".join(others)))


def cleaned(value: T) -> T:
    made: object = value
    if isinstance(value, str):
        made = _text(value)
    elif isinstance(value, list | tuple):
        made = type(value)([cleaned(item) for item in value])
    elif isinstance(value, Mapping):
        made = {cleaned(name): cleaned(item) for name, item in value.items()}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = dataclasses.replace(
            value, **{part.name: cleaned(getattr(value, part.name)) for part in dataclasses.fields(value)}
        )
    return made  # type: ignore[return-value]


def _text(text: str) -> str:
    return clean(text.replace("\n", " "), LONGEST_RECORDED)
