"""Recent pace and recent events of each rank, and ranks that were slow recently."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path

from perf_callbacks.kernel.records.fit_records import Gc, Span, Steps
from perf_callbacks.kernel.records.journal_ends import FitEnds
from perf_callbacks.kernel.records.rank_records import Stall, Straggler
from perf_callbacks.kernel.records.shares import WORTH
from perf_callbacks.report import events
from perf_callbacks.report.events import JournalEvent
from perf_callbacks.report.history import finite
from perf_callbacks.report.recorded_run import RecordedRun
from perf_callbacks.report.series import STAGES

RECENT_SECONDS, RECENT_STEPS = 60.0, 100
"""A rank is slow if a straggler record of at most this age, in seconds or steps, names it."""

MOST_BEHIND = 256
"""A journal that lacks more of the latest steps, for example because it is full, gives no pace."""

LONG_PAUSE, LONG_SHARE = 0.01, 0.1
"""Least seconds, and least share of a step, of a garbage collection that is listed as an event."""


@dataclass(frozen=True, slots=True)
class RankPace:
    """Mean times over the last recorded steps of a rank, and the rank's last events."""

    rank: int
    step: int
    steps: int
    """That the means cover; 0: no step is known."""
    step_seconds: float | None
    stages: Mapping[str, float]
    """Means by the names of columns of `Steps`."""
    written: float | None
    """Time of the last record of steps, in seconds since the fit began."""
    events: tuple[tuple[float, JournalEvent], ...]
    """With unix times, because ranks may have begun at different times."""


@dataclass(frozen=True, slots=True)
class RecentLoss:
    """Seconds that a job recently lost to slow ranks."""

    ranks: tuple[int, ...]
    cause: str
    seconds: float
    steps: int


class Paces:
    """Computes a rank's pace again only if it has new records."""

    def __init__(self) -> None:
        self._cached: dict[tuple[Path, int], tuple[FitEnds, RankPace]] = {}

    def current(self, run: RecordedRun) -> list[RankPace]:
        paces = {}
        for ends in run.ranks:
            key = (ends.journal, ends.run.rank)
            cached = self._cached.get(key)
            same = cached is not None and cached[0].latest is ends.latest and cached[0].interim is ends.interim
            paces[key] = cached if cached is not None and same else (ends, pace(ends))
        self._cached = paces
        return [pace for _, pace in paces.values()]


def pace(ends: FitEnds) -> RankPace:
    """Over the latest steps, without excluded ones unless all are excluded."""
    entries = [(entry.t, entry.record) for entry in ends.latest if isinstance(entry.record, Steps)]
    if entries and ends.last_step > max(entries[-1][1].step, default=0) + MOST_BEHIND:
        entries = []
    rank, blocks = ends.run.rank, [block for _, block in entries]
    every = [[*range(len(block.step))] for block in blocks]
    places = [
        [place for place in steps if not block.excluded or block.excluded[place] is None]
        for block, steps in zip(blocks, every, strict=True)
    ]
    places = places if any(places) else every
    stages = {name: _mean(name, blocks, places) for name in ("step_time", *STAGES)}
    means = {name: seconds for name, seconds in stages.items() if seconds is not None}
    seconds = means.pop("step_time", None)
    written = finite(entries[-1][0]) if entries else None
    count = sum(map(len, places))
    return RankPace(rank, ends.last_step, count, seconds, means, written, tuple(_events(ends, seconds)))


def _mean(name: str, blocks: Sequence[Steps], places: Sequence[Sequence[int]]) -> float | None:
    numbers: list[float] = []
    for block, shown in zip(blocks, places, strict=True):
        column = getattr(block, name)
        wanted = column if len(shown) == len(column) else [column[place] for place in shown] if column else ()
        numbers += [value for value in wanted if value is not None]
    if numbers and None in {finite(min(numbers)), finite(max(numbers))}:
        numbers = [value for value in numbers if finite(value) is not None]
    return fsum(numbers) / len(numbers) if numbers else None


def _events(ends: FitEnds, step_seconds: float | None) -> Iterator[tuple[float, JournalEvent]]:
    rank, long = ends.run.rank, max(LONG_PAUSE, LONG_SHARE * (step_seconds or 0.0))
    for entry in ends.latest:
        record, moment, event = entry.record, entry.t, None
        if isinstance(record, Gc | Span):  # a collection may be written many steps later
            moment = record.start + record.seconds
        if isinstance(record, Straggler):
            event = events.of_straggler(record)
            if ends.run.world_size == 1:
                event = event._replace(text=event.text.replace(f"rank {rank} cost", "slow steps lost", 1))
        elif isinstance(record, Span):
            event = events.of_span(record, rank)
        elif isinstance(record, Gc) and record.seconds >= long:
            event = events.of_collection(record, rank)
        elif isinstance(record, Stall) and record.rank == rank:
            text = f"rank {rank} stalls in {record.stage}"
            event = JournalEvent(record.step, "stall", text, rank, record.since_seconds)
        if event is not None and finite(moment) is not None:
            yield ends.run.started_unix + moment, event


def recent_losses(run: RecordedRun) -> list[RecentLoss]:
    """The largest loss first. Small losses are left out."""
    lead, losses = run.lead, dict[tuple[tuple[int, ...], str], RecentLoss]()
    recent = max(RECENT_SECONDS, RECENT_STEPS * (finite(run.step_seconds) or 0.0))
    for entry in lead.latest:
        slow = entry.record
        if not isinstance(slow, Straggler) or finite(slow.seconds_lost) is None:
            continue
        if entry.t < lead.seconds - RECENT_SECONDS and slow.step < lead.last_step - RECENT_STEPS:
            continue
        key = (slow.ranks or (slow.rank,), slow.cause)
        old = losses.get(key, RecentLoss(*key, 0.0, 0))
        losses[key] = RecentLoss(*key, old.seconds + slow.seconds_lost, old.steps + slow.steps)
    costly = [loss for loss in losses.values() if loss.seconds >= WORTH * min(recent, lead.seconds)]
    return sorted(costly, key=lambda loss: loss.seconds, reverse=True)
