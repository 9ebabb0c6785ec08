"""Time that a job spent on each kind of work over all attempts, with the job's devices, tokens and energy."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any

from perf_callbacks.goodput import time_kinds
from perf_callbacks.goodput.attempt_order import in_order, parents, survivors
from perf_callbacks.kernel.records.fit_records import Run, Summary, Window
from perf_callbacks.kernel.records.machine_records import Use
from perf_callbacks.kernel.units import HOUR_SECONDS
from perf_callbacks.report.history import Attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptTime:
    """Time of one attempt and of the gap before it."""

    run: Run
    origin: int | None
    """The attempt whose checkpoint this attempt read; None: it began anew, or the index is unknown."""
    began_seconds: float
    """From the first start of the job to the start of this attempt's process."""
    seconds: Mapping[str, float]
    """By kind, with the downtime before the attempt; kinds that were not measured are missing."""
    steps: int
    kept_steps: int
    unseen_steps: int
    ended: bool | None
    """False: it failed; None: it was killed, hangs or still runs."""
    failure: str | None
    tokens: float | None
    rank_tokens: float | None
    """Of the rank that wrote the journal, in the surviving steps."""
    joules: float | None
    """Of the device of the rank that wrote the journal."""

    @property
    def devices(self) -> int:
        return max(1, self.run.world_size) * max(1, self.run.devices)

    @property
    def rolled_back_steps(self) -> int:
        return self.steps - self.kept_steps

    @property
    def lacks_steps(self) -> bool:
        """Last steps before a kill are lost, and so are steps after the journal was full."""
        return self.ended is None or self.unseen_steps > 0

    @property
    def all_seconds(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTime:
    """Time of a job from the first start to the last sign of life."""

    attempts: tuple[AttemptTime, ...]
    """In the order of their starts, at least one."""
    overlap_seconds: float
    """Time in which several attempts seem to have run at once, because two resumed the same one or a clock was changed.

    Each of the overlapping attempts includes it.
    """

    @property
    def seconds(self) -> dict[str, float]:
        return _sums(self.attempts, lambda _: 1)

    @property
    def device_seconds(self) -> dict[str, float]:
        """Seconds of each attempt times its number of devices."""
        return _sums(self.attempts, lambda attempt: attempt.devices)

    @property
    def all_seconds(self) -> float:
        """From the first start to the last sign of life, plus `overlap_seconds`."""
        return sum(self.seconds.values())

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio: the time of surviving steps as a share of all time."""
        return _share(time_kinds.STEP_KINDS, self.seconds)

    @property
    def goodput(self) -> float | None:
        """Share of the device time that surviving steps use, without waits for data and for other ranks."""
        return _share((time_kinds.PRODUCTIVE,), self.device_seconds)

    @property
    def device_hours(self) -> float:
        return sum(self.device_seconds.values()) / HOUR_SECONDS

    @property
    def lower_bound(self) -> bool:
        """True if more steps may have been rolled back, because the journal of an earlier attempt lacks steps."""
        return any([attempt.lacks_steps for attempt in self.attempts[:-1]])

    @property
    def tokens(self) -> float | None:
        """Of all ranks in the surviving steps."""
        return _known_sum([attempt.tokens for attempt in self.attempts])

    @property
    def joules(self) -> float | None:
        """Of the device of the journal's rank, over all attempts with a measured energy."""
        return _known_sum([attempt.joules for attempt in self.attempts if attempt.joules is not None] or [None])

    @property
    def joules_per_token(self) -> float | None:
        """Of the journal's rank, over the attempts with known energy and tokens."""
        metered = [
            attempt for attempt in self.attempts if attempt.joules is not None and attempt.rank_tokens is not None
        ]
        tokens = sum([attempt.rank_tokens or 0.0 for attempt in metered])
        return sum([attempt.joules or 0.0 for attempt in metered]) / tokens if tokens else None


def from_attempts(attempts: Iterable[Attempt]) -> JobTime:
    """Raise `ValueError` if there are no attempts, or if a journal holds impossible times."""
    timed = in_order(attempts)
    ordered = [attempt for _, attempt in timed]
    kept, origins = survivors(ordered), parents(ordered)
    first = covered = 0.0
    times: list[AttemptTime] = []
    for place, (begin, attempt) in enumerate(timed):
        seconds = time_kinds.lasted(attempt)
        if place + 1 < len(timed):
            seconds = max(attempt.seconds, min(seconds, timed[place + 1][0] - begin))
        restore = max(0.0, attempt.run.restore_seconds or 0.0)
        startup = max(restore, attempt.run.process_seconds or 0.0)  # a later fit of a process doesn't know its startup
        if not place:
            first = covered = begin - startup
        gap = max(0.0, begin - covered)
        startup, restore = min(startup, gap), min(restore, gap)
        before = {
            time_kinds.STARTUP: startup - restore,
            time_kinds.RESTORE: restore,
            time_kinds.DOWNTIME: gap - startup,
        }
        covered = max(covered, begin + seconds)
        parts = time_kinds.by_kind(attempt, kept[place], seconds)
        parts |= {kind: part for kind, part in before.items() if kind in parts}
        times.append(_attempt(attempt, kept[place], origins[place], parts, begin - startup - first))
    whole = sum([attempt.all_seconds for attempt in times])
    job = JobTime(attempts=tuple(times), overlap_seconds=max(0.0, whole - (covered - first)))
    if not times or not isfinite(job.device_hours + job.overlap_seconds):
        raise ValueError("no attempt, or impossible times")
    return job


def _attempt(attempt: Attempt, kept: int, origin: int | None, parts: Mapping[str, float], began: float) -> AttemptTime:
    end = attempt.last(Summary)
    rank_tokens, job_tokens = _tokens(attempt, kept)
    return AttemptTime(
        run=attempt.run,
        origin=origin,
        began_seconds=began,
        seconds={kind: parts[kind] for kind in time_kinds.KINDS if kind in parts},
        steps=len(attempt.step),
        kept_steps=kept,
        unseen_steps=attempt.unseen_steps,
        ended=None if end is None else end.failure is None,
        failure=None if end is None else end.failure,
        tokens=job_tokens,
        rank_tokens=rank_tokens,
        joules=_joules(attempt),
    )


def _tokens(attempt: Attempt, kept: int) -> tuple[float | None, float | None]:
    """Return the tokens of one rank and of all ranks in the surviving steps.

    The `Window` records of the journal show how many tokens all ranks have for each token of one rank.
    """
    column = attempt.columns["tokens"]
    own = _known_sum([None if isnan(value) else value for value in column[:kept]])
    if not own or attempt.run.world_size == 1:
        return own, own
    shared = of_job = 0.0
    for window in time_kinds.records(attempt, Window):
        begin, end = bisect_left(attempt.step, window.first_step), bisect_right(attempt.step, window.last_step)
        covered = [
            place
            for place in range(begin, end)
            if attempt.excluded.get(attempt.step[place], "recounted") == "recounted"
        ]
        tokens = sum([column[place] for place in covered])
        if window.tokens is not None and not window.missing and len(covered) == window.steps and not isnan(tokens):
            shared += tokens
            of_job += window.tokens
    return own, own * of_job / shared if shared > 0 else None


def _joules(attempt: Attempt) -> float | None:
    """None also if processes share the device."""
    uses = [use for use in time_kinds.records(attempt, Use) if use.energy_joules is not None]
    if not uses or any((use.gpu_processes or 1) > 1 for use in uses):
        return None
    return sum([use.energy_joules or 0.0 for use in uses])


def _sums(attempts: Iterable[AttemptTime], weight: Callable[[AttemptTime], int]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for attempt in attempts:
        for kind, seconds in attempt.seconds.items():
            sums[kind] = sums.get(kind, 0.0) + seconds * weight(attempt)
    return {kind: sums[kind] for kind in time_kinds.KINDS if kind in sums}


def _share(kinds: Iterable[str], seconds: Mapping[str, float]) -> float | None:
    whole = sum(seconds.values())
    return sum([seconds.get(kind, 0.0) for kind in kinds]) / whole if whole > 0 else None


def _known_sum(values: Iterable[float | None]) -> float | None:
    every = [*values]
    summands = [value for value in every if value is not None]
    return sum(summands) if len(summands) == len(every) else None


def facts(job: JobTime, price: float | None) -> dict[str, Any]:
    """Return plain values for JSON. The price is that of one device for an hour."""
    money = None if price is None else job.device_hours * price
    last = job.attempts[-1]
    return {
        "ettr": job.ettr,
        "goodput": job.goodput,
        "seconds": {kind: job.seconds.get(kind) for kind in time_kinds.KINDS},
        "all_seconds": job.all_seconds,
        "overlap_seconds": job.overlap_seconds,
        "device_hours": job.device_hours,
        "kept_steps": sum([attempt.kept_steps for attempt in job.attempts]),
        "rolled_back_steps": sum([attempt.rolled_back_steps for attempt in job.attempts]),
        "rolled_back_is_lower_bound": job.lower_bound,
        "money": money,
        "money_by_kind": None
        if price is None
        else {kind: seconds / HOUR_SECONDS * price for kind, seconds in job.device_seconds.items()},
        "tokens": job.tokens,
        "money_per_million_tokens": None if money is None or not job.tokens else money / job.tokens * 1e6,
        "joules_of_one_device": job.joules,
        "joules_per_token": job.joules_per_token,
        "run_id": last.run.run_id,
        "attempts": [
            {
                "run_id": attempt.run.run_id,
                "attempt": attempt.run.attempt,
                "resumed_from": attempt.origin,
                "from_step": attempt.run.step,
                "began_seconds": attempt.began_seconds,
                "seconds": {kind: attempt.seconds.get(kind) for kind in time_kinds.KINDS},
                "devices": attempt.devices,
                "steps": attempt.steps,
                "rolled_back_steps": attempt.rolled_back_steps,
                "ended": attempt.ended,
                "failure": attempt.failure,
                "joules_of_one_device": attempt.joules,
            }
            for attempt in job.attempts
        ],
    }
