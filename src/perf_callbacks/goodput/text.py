"""Text about the time of a job: a sentence, a table of kinds of time with their shares, and a line per attempt."""

from collections.abc import Iterable, Iterator

from perf_callbacks.goodput import time_kinds
from perf_callbacks.goodput.job_time import AttemptTime, JobTime
from perf_callbacks.kernel.units import HOUR_SECONDS
from perf_callbacks.report.history import FEW

LOSSES = {
    time_kinds.DATA: "the loader",
    time_kinds.COMMUNICATION: "waits for other ranks",
    time_kinds.STRAGGLERS: "slow ranks",
    time_kinds.ROLLED_BACK: "steps that were rolled back",
    time_kinds.STALLS: "stalls",
    time_kinds.STARTUP: "startup",
    time_kinds.RESTORE: "reading checkpoints",
    time_kinds.FIRST_STEP: "first steps",
    time_kinds.EVALUATION: "evaluations",
    time_kinds.CHECKPOINT: "checkpoints",
    time_kinds.DOWNTIME: "downtime",
    time_kinds.OTHER: "other work",
}


def sentence(job: JobTime) -> str:
    seconds_by_kind = job.device_seconds
    whole = sum(seconds_by_kind.values())
    if whole <= 0:
        return "No time was measured."
    seconds, kind = max((seconds_by_kind.get(kind, 0.0), kind) for kind in LOSSES)
    last = job.attempts[-1]
    device = "GPU" if last.run.tensor_cores or last.run.timeline == "device" else "device"
    text = f"{seconds_by_kind[time_kinds.PRODUCTIVE] / whole:.1%} of {hours(whole)} bought progress"
    text = text.replace(" h ", f" {device}-hours ")
    if any(attempt.devices > 1 for attempt in job.attempts):
        text = text.replace(" s ", f" {device}-seconds ")
    return f"{text}; {hours(seconds)} were {LOSSES[kind]}." if seconds > 0 else f"{text}."


def hours(seconds: float) -> str:
    """Format a time in hours. Times below an hour are in seconds.

    >>> hours(4_723_200.0), hours(5400.0), hours(75.3)
    ('1,312 h', '1.5 h', '75.3 s')
    """
    if seconds < HOUR_SECONDS:
        return f"{seconds:.1f} s"
    value = seconds / HOUR_SECONDS
    return f"{value:,.0f} h" if value >= 100 else f"{value:.1f} h"  # noqa: PLR2004 three figures


def kinds(job: JobTime) -> list[tuple[str, str, str]]:
    seconds_by_kind = job.device_seconds
    whole = sum(seconds_by_kind.values())
    return [
        (kind, hours(seconds), f"{seconds / whole:.1%}") for kind, seconds in seconds_by_kind.items() if seconds > 0
    ]


def unknown(job: JobTime) -> list[str]:
    """Kinds that no attempt measured; their time is part of other kinds."""
    alone = all(attempt.run.world_size == 1 for attempt in job.attempts)
    asked = [time_kinds.DATA, *([] if alone else [time_kinds.COMMUNICATION, time_kinds.STRAGGLERS])]
    if any(attempt.run.step for attempt in job.attempts):
        asked.append(time_kinds.RESTORE)
    return [kind for kind in asked if kind not in job.seconds]


def attempts(job: JobTime) -> Iterator[tuple[str, ...]]:
    """Yield the headings first."""
    yield "attempt", "from step", "devices", "down before", "lasted", "steps", "rolled back", "end"
    for place, attempt in enumerate(job.attempts, 1):
        down = attempt.seconds[time_kinds.DOWNTIME]
        yield (
            str(place),
            f"{attempt.run.step:,}",
            f"{attempt.devices:,}",
            hours(down) if place > 1 else "",
            hours(attempt.all_seconds - down),
            f"{attempt.steps:,}",
            rolled_back(attempt, last=place == len(job.attempts)),
            end(attempt, last=place == len(job.attempts)),
        )


def rolled_back(attempt: AttemptTime, *, last: bool) -> str:
    """With "≥" if the journal may lack steps."""
    if attempt.lacks_steps and not last:
        return f"≥ {attempt.rolled_back_steps:,}"
    return f"{attempt.rolled_back_steps:,}" if attempt.rolled_back_steps else ""


def end(attempt: AttemptTime, *, last: bool) -> str:
    if attempt.ended is None:
        return "killed, or goes on" if last else "killed"
    return "ended" if attempt.ended else f"failed: {attempt.failure}"


def notes(job: JobTime) -> Iterable[str]:
    for ended, why in ((True, "by choice: the attempts had ended in order"), (False, "after a crash or a kill")):
        steps = sum([attempt.rolled_back_steps for attempt in job.attempts if bool(attempt.ended) is ended])
        least = "at least " if job.lower_bound and not ended else ""
        if steps:
            yield f"Rolled back {why}: {least}{steps:,} steps."
    if job.lower_bound:
        yield "At least: the last seconds before a kill, and steps after a journal was full, are not on disk."
    if job.overlap_seconds > 1:
        yield (
            f"Attempts ran at the same time for {hours(job.overlap_seconds)}, or a clock was changed. This time counts "
            "for each of them."
        )
    unseen = sum([attempt.unseen_steps for attempt in job.attempts])
    if unseen > FEW:
        yield f"{unseen:,} steps are in no journal, which was full (max_journal_mb): their time is part of other."
    unmetered = sum([attempt.joules is None for attempt in job.attempts])
    if unmetered and job.joules is not None:
        yield f"The energy of {unmetered:,} of {len(job.attempts):,} attempts is unknown, and not part of the sum."
    if unknown(job):
        yield f"Not measured, and so part of other kinds: {', '.join(unknown(job))}."
