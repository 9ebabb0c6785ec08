"""`perf-callbacks goodput`: show how much of a job's time bought progress, over all attempts."""

import argparse
import json
import math
from functools import partial
from pathlib import Path

from perf_callbacks.commands import show
from perf_callbacks.commands.outcomes import JSON_SCHEMA
from perf_callbacks.goodput import job_time, text
from perf_callbacks.goodput.attempt_order import in_order
from perf_callbacks.goodput.job_time import JobTime
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.plural import plural
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.records import interim
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.journal_file import FOLDER, read
from perf_callbacks.kernel.settings.config import ConfigError, printable
from perf_callbacks.report import run_title
from perf_callbacks.report.history import Attempt, FitHistory, gather
from perf_callbacks.report.layout import aligned, clean, wrapped
from perf_callbacks.report.run_reader import journals_below
from perf_callbacks.report.units import energy

SUMMARY: str = "show how much of a job's time bought progress, over all attempts"

SLACK_SECONDS = 1.0
"""A restart may begin before the last record of the earlier run, but by no more than this."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Reads the journals of the lowest rank in and below DIR. The attempts of a job share the run's id, which "
        "checkpoints carry on. Shows the newest job. Exits with 2 if there is no journal, or if a journal holds "
        "impossible values."
    )
    show.add_directory(parser)
    parser.add_argument("--all", action="store_true", help="count all runs in and below DIR as attempts of one job")
    parser.add_argument("--price", type=_price, metavar="PRICE", help="price of an hour of one device, such as 2.5")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """With `--all`, all runs count as one job."""
    top: Path = arguments.directory
    jobs = _jobs(_fits(top))
    if arguments.all:
        jobs = [[fit for job in jobs for fit in job]]
    elif len(jobs) > 1:
        show.to_stderr(f"{printable(str(top))}: the newest of {len(jobs):,} jobs. All runs as one job: --all")
    fits = jobs[-1]
    try:
        job = job_time.from_attempts([attempt for fit in fits for attempt in fit.first])
        if arguments.json:
            title = run_title.title(fits[-1].run)
            facts = {"schema": JSON_SCHEMA, "title": title, **job_time.facts(job, arguments.price)}
            shown = json.dumps(facts, indent=2, allow_nan=False)
        else:
            shown = _text(job, arguments.price, terminal.columns())
    except (ArithmeticError, ValueError):
        raise ConfigError(f"{top}: the journal holds impossible values") from None
    print(shown)
    return 0


def _fits(top: Path) -> list[FitHistory]:
    """The oldest first."""
    journals = [path for folder in journals_below(top, []) for path in folder]
    try:
        fits = gather(map(read, journals), [partial(interim.read, path) for path in journals])
    except OSError as error:
        raise ConfigError(f"{top}: {error.strerror or error}") from error
    if not fits:
        raise ConfigError(f"{top}: no run in or below this directory. A run writes {FOLDER}/rank<k>.jsonl.")
    return fits


def _jobs(fits: list[FitHistory]) -> list[list[FitHistory]]:
    """Group the runs by job, from the oldest to the newest.

    Runs are one job if they have the same job id, command and directory, and the earlier one failed or has no summary.
    The run ids differ if a scheduler or torchrun restarts a job before its first checkpoint.
    """
    jobs: list[list[FitHistory]] = []
    for fit in sorted(fits, key=lambda fit: _ordered(fit)[0].run.started_unix):
        again = [job for job in jobs if _is_restart(job[-1], fit)]
        if again:
            again[-1].append(fit)
        else:
            jobs.append([fit])
    return sorted(jobs, key=lambda job: _ordered(job[-1])[-1].run.started_unix)


def _is_restart(before: FitHistory, fit: FitHistory) -> bool:
    last, new = _ordered(before)[-1], _ordered(fit)[0].run
    old, end = last.run, last.last(Summary)
    same = (old.job_id, old.command_line, old.directory) == (new.job_id, new.command_line, new.directory)
    at_once = new.started_unix < old.started_unix + last.seconds - SLACK_SECONDS
    return same and new.job_id is not None and not at_once and (end is None or end.failure is not None)


def _ordered(fit: FitHistory) -> list[Attempt]:
    return [attempt for _, attempt in in_order(fit.first)]


def _text(job: JobTime, price: float | None, columns: int) -> str:
    lines = wrapped(text.sentence(job), indent="", width=columns)
    ettr = "unknown" if job.ettr is None else f"{job.ettr:.3f}"
    kept = sum([attempt.kept_steps for attempt in job.attempts])
    lost = sum([attempt.rolled_back_steps for attempt in job.attempts])
    attempts, least = plural(len(job.attempts), "attempt"), "at least " if job.lower_bound else ""
    lines.append(f"ETTR {ettr} over {attempts}: {kept:,} steps survive, {least}{lost:,} were rolled back.")
    facts = job_time.facts(job, price)
    per_token, per_million = job.joules_per_token, facts["money_per_million_tokens"]
    if price is not None:
        money = f"Money: {facts['money']:,.2f} at {price:g} per device-hour"
        lines.append(money + (f", {per_million:,.3g} per million tokens." if per_million is not None else "."))
    if job.joules is not None:
        used = f"Energy of rank {job.attempts[-1].run.rank}'s device: {energy(job.joules)}"
        lines.append(used + (f", {energy(per_token)} per token." if per_token is not None else "."))
    lines += ["", *[f"  {row}" for row in aligned(text.kinds(job), right={1, 2})], ""]
    rows = [[clean(cell) for cell in row] for row in text.attempts(job)]
    lines += [f"  {row}"[:columns] for row in aligned(rows, right=range(7))]
    notes = [line for note in text.notes(job) for line in wrapped(note, width=columns)]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _price(word: str) -> float:
    with suppress(ValueError):
        value = float(word)
        if math.isfinite(value) and value >= 0:
            return value
    raise argparse.ArgumentTypeError(f"got {word}, wanted a price such as 2.5")
