"""Order of a job's attempts: when each attempt started, which attempt it resumed, and which of its steps survive."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain

from perf_callbacks.kernel.records.fit_records import Run
from perf_callbacks.report.history import Attempt


def in_order(attempts: Iterable[Attempt]) -> list[tuple[float, Attempt]]:
    """Return each attempt with its start in unix time. A resumed attempt comes after the attempt that it resumed.

    Attempts of one boot are ordered by the time since boot, because somebody may change the wall clock. The unix time
    of a boot comes from the wall clock of the boot's most recent attempt.
    """
    unsorted = [*attempts]
    runs = sorted([attempt.run for attempt in unsorted], key=lambda run: (_uptime(run), _key(run)))
    boots = {run.boot_id: run for run in runs if run.boot_id}

    def start(run: Run) -> float:
        last = boots.get(run.boot_id or "")
        began = run.started_unix if last is None else last.started_unix - _uptime(last) + _uptime(run)
        return began if math.isfinite(began) else 0.0

    timed = sorted(
        [(start(attempt.run), attempt) for attempt in unsorted], key=lambda pair: (pair[0], _key(pair[1].run))
    )
    by_start = {(attempt.run.run_id, attempt.run.started_unix): place for place, (_, attempt) in enumerate(timed)}
    placed: dict[int, tuple[float, Attempt]] = {}
    for place in range(len(timed)):
        line: list[int] = []
        parent: int | None = place
        while parent is not None and parent not in placed and parent not in line:
            line.append(parent)
            run = timed[parent][1].run
            parent = None if run.resumed_unix is None else by_start.get((run.run_id, run.resumed_unix))
        placed |= {attempt: timed[attempt] for attempt in reversed(line)}
    return [*placed.values()]


def _uptime(run: Run) -> float:
    return run.uptime_seconds or 0.0


def _key(run: Run) -> tuple[float, int, int, str]:
    return run.started_unix, run.attempt, run.step, run.run_id


def parents(ordered: Sequence[Attempt]) -> list[int | None]:
    """Return for each attempt the index of the attempt that it resumed, or None if it began anew.

    If the checkpoint names no attempt with a journal: the most recent earlier attempt that reached the checkpoint's
    step, or else the most recent one that began at a lower step.
    """
    origins: list[int | None] = []
    for place, attempt in enumerate(ordered):
        run, earlier = attempt.run, range(place - 1, -1, -1)
        named = (at for at in earlier if _identity(ordered[at]) == (run.run_id, run.resumed_unix))
        reached = (at for at in earlier if run.step and ordered[at].run.step < run.step <= last_step(ordered[at]))
        below = (at for at in earlier if ordered[at].run.step < run.step)
        origins.append(next(chain(named, reached, below), None))
    return origins


def _identity(attempt: Attempt) -> tuple[str, float | None]:
    return attempt.run.run_id, attempt.run.started_unix


def last_step(attempt: Attempt) -> int:
    return attempt.step[-1] if attempt.step else attempt.run.step


def survivors(ordered: Sequence[Attempt]) -> list[int]:
    """Return the steps of each attempt that are in the final model; the others are rolled back."""
    kept = [0] * len(ordered)
    origins = parents(ordered)
    place: int | None = len(ordered) - 1 if ordered else None
    limit: int | None = None
    while place is not None:
        attempt = ordered[place]
        kept[place] = len(attempt.step) if limit is None else bisect_right(attempt.step, limit)
        limit = attempt.run.step if limit is None else min(limit, attempt.run.step)
        place = origins[place]
    return kept
