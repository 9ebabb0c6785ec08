"""Bars of the report for a run with several attempts: one bar for the whole run, and one bar per attempt."""

from collections.abc import Mapping
from typing import Any

from perf_callbacks.goodput import job_time, text
from perf_callbacks.report import machine
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.units import percent

MOST = 24
"""Largest number of attempts that get a bar. If a run has more attempts, only the most recent attempts get a bar."""


def bars(fit: FitHistory) -> dict[str, Any] | None:
    """Return a bar for all attempts, and a bar for each attempt. None: there is one attempt, or no time passed."""
    if len(fit.first) == 1:
        return None
    job = job_time.of(fit.first)
    numbered = [*enumerate(job.attempts, 1)][-MOST:]
    longest = max(one.all_seconds for _, one in numbered)
    if longest <= 0:
        return None
    shown = "" if len(numbered) == len(job.attempts) else f" Below: the last {MOST}."
    title = f"{text.sentence(job)} ETTR {percent(job.ettr)} over {len(job.attempts):,} attempts.{shown}"
    whole = job.all_seconds
    attempts = []
    for place, one in numbered:
        lost = f", {one.rolled_back_steps:,} rolled back" if one.rolled_back_steps else ""
        end = text.end(one, last=place == len(job.attempts))
        about = f"from step {one.run.step:,}, {one.steps:,} steps{lost}, {end}"
        bar = machine.bar(about, _parts(one.seconds), longest)
        attempts.append({"name": f"Attempt {place}", "bar": bar})
    return {"all": machine.bar(title.removesuffix("."), _parts(job.seconds), whole), "attempts": attempts}


def _parts(seconds: Mapping[str, float]) -> list[tuple[str, float, str]]:
    return [(kind, value, text.hours(value)) for kind, value in seconds.items() if value > 0]
