"""Events of a fit, such as a stall, as lines of JSON of limited size."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf_callbacks.kernel.records.fit_records import Finding, Run, Summary
from perf_callbacks.kernel.settings.config import printable
from perf_callbacks.report import cards, run_title
from perf_callbacks.report.units import long_duration

SCHEMA = 1
"""Increases when a key is removed or changes its meaning."""

STALL, STRAGGLER, DRIFT, END = "stall", "straggler", "drift", "end"

ENDED, FAILED, LOST = "ended", "failed", "lost"
"""States of a fit at its end. `lost`: its process was killed or crashed."""

MOST_TEXT, MOST_ITEMS = 500, 20
"""Characters of a text, items of a list."""

MOST_FINDINGS = 5

MOST_BYTES = 32_000
"""A larger event is sent without its lists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Run of a fit, and its output directory."""

    run: Run
    directory: str | None
    """Of the run's output; None: there is no journal."""

    def event(self, kind: str, sentence: str, details: Mapping[str, Any], *, step: int, now: float) -> dict[str, Any]:
        """The kind, such as "stall", is also the key of the details."""
        run = self.run
        title = run_title.title(run)
        common = {
            "schema": SCHEMA,
            "event": kind,
            "time_unix": now,
            "text": f"{title}: {sentence}",
            "title": title,
            "run_id": run.run_id,
            "attempt": run.attempt,
            "job_id": run.job_id,
            "host": run.host,
            "program": run.program,
            "output_dir": self.directory,
            "rank": run.rank,
            "world_size": run.world_size,
            "step": step,
        }
        return {name: _bounded(value, 2 * MOST_TEXT) for name, value in common.items()} | {kind: _bounded(details)}

    def end(self, summary: Summary, *, now: float) -> dict[str, Any]:
        seconds = sum(summary.wall_seconds.values())
        verdict = cards.verdict(summary)
        state = ENDED if summary.failure is None else FAILED
        sentence = f"{state} after step {summary.step} and {long_duration(seconds)}"
        sentence += f": {summary.failure.partition(chr(10))[0]}." if summary.failure else "."
        details = {
            "state": state,
            "reason": summary.failure,
            "seconds": seconds,
            "steps": summary.steps,
            "step_seconds": summary.step_time,
            "verdict": verdict or None,
            "findings": [_finding(finding) for finding in summary.findings[:MOST_FINDINGS]],
        }
        return self.event(END, f"{sentence} {verdict}".strip(), details, step=summary.step, now=now)

    def drift(self, finding: Finding, *, step: int, now: float) -> dict[str, Any]:
        return self.event(DRIFT, f"{finding.evidence}; try {finding.remedy}.", _finding(finding), step=step, now=now)

    def lost(self, *, step: int, now: float) -> dict[str, Any]:
        reason = "its process ended without a word: it was killed, or ended in C code"
        show = "" if self.directory is None else f" `perf-callbacks show {self.directory}` shows what is left."
        details = {"state": LOST, "reason": reason}
        return self.event(END, f"lost: {reason}.{show}", details, step=step, now=now)


def line(event: Mapping[str, Any]) -> bytes:
    text = _encoded(event)
    return text if len(text) <= MOST_BYTES else _encoded(_without_lists(event))


def _encoded(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, allow_nan=False, ensure_ascii=False).encode(errors="replace") + b"\n"


def _finding(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in ("cause", "share", "low", "evidence", "remedy")}


def _bounded(value: Any, most: int = MOST_TEXT) -> Any:
    """Shorten long texts and lists. NaN and infinity become None.

    >>> _bounded({"text": chr(27) + "x" * 600, "share": float("nan"), "ranks": range(30)})["share"] is None
    True
    """
    if isinstance(value, Mapping):
        return {str(name): _bounded(item, most) for name, item in value.items()}
    if isinstance(value, str):
        text = printable(value)
        return text if len(text) <= most else text[: most - 1] + "…"
    if isinstance(value, float):
        return float(f"{value:.12g}") if math.isfinite(value) else None
    if isinstance(value, Sequence):
        return [_bounded(item, most) for item in value[:MOST_ITEMS]]
    return value if value is None or isinstance(value, bool | int) else str(value)[:most]


def _without_lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_lists(item) for name, item in value.items() if not isinstance(item, list)}
    return value
