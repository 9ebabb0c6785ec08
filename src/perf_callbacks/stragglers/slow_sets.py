"""Sets of ranks that are slow for several windows in a row, and the seconds that they cost the job.

A rank's level is its median local time in a window. The healthy pace is a low quantile of the levels, so that up to
three quarters of the ranks may be slow. Among the ranks above it, the search names the smallest set that explains most
of the lost time.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median_low, stdev

from perf_callbacks.kernel.records.rank_records import Straggler
from perf_callbacks.kernel.records.shares import WORTH
from perf_callbacks.stragglers.peers import DEVICE, HOST, Peers, low, median

SLOW_SHARE = 0.05
"""A slow rank's median local time exceeds the healthy pace by this part of a step,"""

ERRORS = 5.0
"""and by this many standard errors of the median."""

DEVIATION, MEDIAN = 1.4826, 1.2533
"""Normal distributions: standard by median deviation, and the standard error of the median by the mean's."""

BLOCKS = 5
"""Parts of a window whose medians give a standard error. If times drift slowly, that of single steps is too small."""

KEPT_SHARE = 0.02
"""A reported rank stays slow while it exceeds the healthy pace by this part of a step."""

LONG_WINDOWS, LONG_STEPS = 2, 30
"""Consecutive windows, and steps in total, in which a reported rank was slow."""

MOST = 0.9
"""The named set must explain this part of the time that all candidates together cost the job."""

MICRO_BATCHES = 32
"""Assumed micro-batches of a pipeline: a stage waits in each step for the first one, 1/32 of the earlier stages'
times."""

EXPLAINED = 16
"""Ranks of a set whose causes are examined."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowRank:
    """A rank, or a set of ranks, that was slow in at least two windows in a row."""

    rank: int
    """The slowest of the set."""
    ranks: tuple[int, ...] = ()
    """Ascending. Empty for a single rank."""
    step: int
    """The last of the newest window."""
    steps: int
    """In the windows in which the slowest rank was slow."""
    share: float
    """Of the step: extra time of the slowest rank in the newest window, compared with a healthy one."""
    causes: Mapping[str, float]
    """Part of the set's excess that each explains, the largest first."""


@dataclass(slots=True)
class ComparedStage:
    """Ranks that do the same work in one window: of the job, or of one pipeline stage."""

    peers: Peers
    times: list[Sequence[float]]
    """Local times of each rank in `peers`, without losses in single steps. Its median replaces unknown times."""
    even: list[Sequence[float]]
    """As with batches of equal sizes."""
    pace: float = 0.0
    """The healthy one: lower quartile of the ranks' median local times."""
    before: float = 0.0
    """Seconds per step in which earlier pipeline stages are busy and this stage is idle."""

    def examine(self, step_seconds: float, yield_gil: Callable[[], object]) -> dict[int, float]:
        """Set the healthy pace, and return the seconds per step by which slow ranks exceed it."""
        self.pace = low([median(self.even[place]) for place in self.peers.sample])
        if len(self.peers.ranks) == 1:
            return {}
        least = SLOW_SHARE * step_seconds
        excess = {}
        for place, column in enumerate(self.even):
            yield_gil()
            # A fast test: a mean this low has no median above the limit, unless many steps are faster than the pace.
            if sum(column) <= (self.pace + least / 2) * len(column):
                continue
            level = median_low(column)
            if level - self.pace > max(least, ERRORS * _error(column, level)):
                excess[self.peers.ranks[place]] = level - self.pace
        return excess


def _error(column: Sequence[float], level: float) -> float:
    """Return the standard error of a median, from single steps or from parts of the window: the larger."""
    steps = len(column)
    error = MEDIAN * DEVIATION * median([abs(seconds - level) for seconds in column]) / math.sqrt(steps)
    if steps < 2 * BLOCKS:
        return error
    length = steps // BLOCKS
    parts = [median_low(column[start : start + length]) for start in range(0, length * BLOCKS, length)]
    return max(error, stdev(parts) / math.sqrt(BLOCKS))


@dataclass(slots=True)
class ComparedWindow:
    """Comparable ranks of one window, in the order of the pipeline stages."""

    numbers: Sequence[int]
    """Of the steps in which the ranks were compared."""
    seconds: float
    """Of the median step."""
    stages: Sequence[ComparedStage]
    yield_gil: Callable[[], object]
    excess: dict[int, float] = field(default_factory=dict)
    """Of each slow rank over the healthy pace of its stage, per step."""
    _where: dict[int, tuple[ComparedStage, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        before = 0.0
        for stage in self.stages:
            self.excess |= stage.examine(self.seconds, self.yield_gil)
            stage.before, before = before, before + stage.pace / MICRO_BATCHES
            self.yield_gil()
            self._where |= {rank: (stage, place) for place, rank in enumerate(stage.peers.ranks)}

    def undecided(self) -> set[int]:
        """Return the slow ranks that may be healthy ranks on devices, which wait for the other ranks.

        Where a wait is not seen, all ranks but the slow one look slow. So slow ranks on devices must be a minority, or
        half of the ranks if their excess is not mostly time on the device.
        """
        ranks: set[int] = set()
        for stage in self.stages:
            slow = [rank for rank in stage.peers.ranks if rank in self.excess]
            majority = 2 * len(slow) - len(stage.peers.ranks)
            if not slow or not stage.peers.waits_hidden or majority < 0:
                continue
            if majority > 0 or next(iter(self.causes(slow[:EXPLAINED]))) == DEVICE:
                ranks.update(slow)
        return ranks

    @property
    def ranks(self) -> Collection[int]:
        return self._where.keys()

    def level(self, rank: int) -> float:
        """Return the seconds per step by which a rank exceeds the healthy pace of its stage."""
        stage, place = self._where[rank]
        return median_low(stage.even[place]) - stage.pace

    def longest(self, without: Collection[int] = ()) -> list[float]:
        """Return the time of each step on its slowest rank, apart from those in `without`."""
        durations = [0.0] * len(self.numbers)
        for stage in self.stages:
            left_out = {self._where[rank][1] for rank in without if self._where[rank][0] is stage}
            columns = [column for place, column in enumerate(stage.times) if place not in left_out]
            self.yield_gil()
            for step, row in enumerate(zip(*columns, strict=True)):
                self.yield_gil()
                durations[step] = max(durations[step], max(row) + stage.before)
        return durations

    def times(self, rank: int) -> list[float]:
        """With the wait for earlier pipeline stages."""
        stage, place = self._where[rank]
        return [seconds + stage.before for seconds in stage.times[place]]

    def smallest_set(self, excess: Mapping[int, float]) -> list[int]:
        """Return the smallest set of ranks, with these excesses per step, that explains most of the lost seconds.

        It is empty if all slow ranks together save too little.
        """
        order = sorted(excess, key=lambda rank: (-excess[rank], rank))
        slow = [self.longest(without=order)]
        for rank in reversed(order):
            self.yield_gil()
            slow.append([*map(max, slow[-1], self.times(rank))])
        slow.reverse()  # slow[count]: step times without the `count` slowest ranks
        healthy = [0.0] * len(self.numbers)
        wins = [0.0]
        for count, rank in enumerate(order, 1):
            self.yield_gil()
            healthy = [*map(max, healthy, [seconds - excess[rank] for seconds in self.times(rank)])]
            wins.append(sum(slow[0]) - sum(map(max, slow[count], healthy)))
        if wins[-1] <= WORTH * self.seconds * len(self.numbers):
            return []
        return order[: next(count for count, win in enumerate(wins) if win >= MOST * wins[-1])]

    def without_excess(self, excess: Mapping[int, float], steps: Mapping[int, range]) -> tuple[float, list[int]]:
        """Subtract each rank's excess per step from its slow steps, given by position.

        Return the saved seconds, and the numbers of all slow steps.
        """
        if not any(steps.values()):
            return 0.0, []
        lost = sum(self.longest())
        for rank, places in steps.items():
            self.yield_gil()
            stage, place = self._where[rank]
            column = [*stage.times[place]]
            for step in places:
                column[step] -= excess[rank]
            stage.times[place] = column
        return lost - sum(self.longest()), [self.numbers[step] for step in sorted(set().union(*steps.values()))]

    def slow_steps(self, rank: int, excess: float, *, at_end: bool) -> range:
        """Return the positions of a rank's slow steps at the beginning of the window or, if `at_end`, at its end.

        The cut is where slow and usual steps are separated best. Two or three steps that are slow by chance don't
        count.
        """
        stage, place = self._where[rank]
        late = [seconds - stage.pace for seconds in stage.even[place]]
        gains = [*accumulate([seconds - excess / 2 for seconds in (reversed(late) if at_end else late)], initial=0.0)]
        count = gains.index(max(gains)) if max(gains) > excess else 0
        return range(len(late) - count, len(late)) if at_end else range(count)

    def causes(self, ranks: Iterable[int]) -> dict[str, float]:
        """Return the part of a set's excess that each cause explains, the largest first."""
        sums: dict[str, float] = {}
        for rank in ranks:
            stage, place = self._where[rank]
            for cause, part in stage.peers.explain(place, self.yield_gil).items():
                sums[cause] = sums.get(cause, 0.0) + part * self.excess[rank]
        whole = sum(sums.values())
        if not whole:
            return {HOST: 1.0}
        return {cause: sums[cause] / whole for cause in sorted(sums, key=lambda name: -sums[name])}


class SlowSets:
    """Follows the slow ranks of a job from window to window."""

    def __init__(self) -> None:
        self._streaks: dict[int, tuple[int, int]] = {}
        """Consecutive windows in which each rank was slow, and steps in them."""
        self._told: dict[int, float] = {}  # excess of reported ranks
        self._causes: Mapping[str, float] = {}
        self._before: list[ComparedWindow] = []
        self.slow: SlowRank | None = None

    def keep(self, window: ComparedWindow) -> None:
        """Keep a reported rank while its excess is larger than `KEPT_SHARE`, unless it recovered in the window.

        That is less than `SLOW_SHARE`, so the set of named ranks rarely changes.
        """
        for rank in sorted(self._told.keys() & window.ranks - window.excess.keys()):
            level, before = window.level(rank), self._told[rank]
            if level <= KEPT_SHARE * window.seconds:
                continue
            if level > before / 2 or not window.slow_steps(rank, before, at_end=False):
                window.excess[rank] = level

    def find(self, window: ComparedWindow) -> list[Straggler]:
        """Return what ranks that are slow for several windows cost the job, with the slow part of this window."""
        self.slow = None
        excess, everything = window.excess, range(len(window.numbers))
        ended = {rank: seconds for rank, seconds in self._told.items() if rank not in excess and rank in window.ranks}
        after = {rank: window.slow_steps(rank, seconds, at_end=False) for rank, seconds in ended.items()}
        after = {rank: steps for rank, steps in after.items() if steps}
        records = self._records(after, ended, [window.without_excess(ended, after)])
        before = {rank: self._streaks.get(rank, (0, 0)) for rank in excess}
        self._streaks = {rank: (windows + 1, steps + len(everything)) for rank, (windows, steps) in before.items()}
        long = {
            rank: excess[rank]
            for rank, (windows, steps) in self._streaks.items()
            if rank in self._told or (windows >= LONG_WINDOWS and steps >= LONG_STEPS)
        }
        named = window.smallest_set(long) if long else []
        if named:
            named += sorted(long.keys() & self._told.keys() - {*named}, key=lambda rank: (-excess[rank], rank))
            self._causes = window.causes(named[:EXPLAINED])
            records += self._earlier({rank: excess[rank] for rank in named if rank not in self._told})
            self.slow = SlowRank(
                rank=named[0],
                ranks=tuple(sorted(named)) if len(named) > 1 else (),
                step=window.numbers[-1],
                steps=self._streaks[named[0]][1],
                share=excess[named[0]] / window.seconds,
                causes=self._causes,
            )
            records += self._records(named, excess, [window.without_excess(excess, dict.fromkeys(named, everything))])
        self._told = {rank: excess[rank] for rank in named}
        self._before.append(window)
        while (
            len(self._before) > LONG_WINDOWS and sum([len(window.numbers) for window in self._before[1:]]) > LONG_STEPS
        ):
            self._before.pop(0)
        return records

    def _earlier(self, excess: Mapping[int, float]) -> list[Straggler]:
        """Return what these ranks cost the job in earlier windows, each from the step in which it became slow."""
        slow, lost = {*excess}, []
        for window in reversed(self._before):
            steps, excesses = {}, {}
            for rank in [*slow]:
                excesses[rank] = window.excess.get(rank, excess[rank])
                if rank in window.excess:
                    steps[rank] = range(len(window.numbers))
                    continue
                slow.discard(rank)
                if rank in window.ranks:
                    steps[rank] = window.slow_steps(rank, excess[rank], at_end=True)
            lost.append(window.without_excess(excesses, steps))
        return self._records(excess, excess, lost)

    def _records(
        self, ranks: Iterable[int], excess: Mapping[int, float], lost: Sequence[tuple[float, Sequence[int]]]
    ) -> list[Straggler]:
        """Return the seconds that a set of ranks cost in some windows: one record for each cause."""
        order = sorted(ranks, key=lambda rank: (-excess[rank], rank))
        seconds = sum([seconds_lost for seconds_lost, _ in lost])
        steps = [number for _, numbers in lost for number in numbers]
        if seconds <= 0 or not steps:
            return []
        several = tuple(sorted(order)) if len(order) > 1 else ()
        return [
            Straggler(
                step=max(steps),
                rank=order[0],
                ranks=several,
                cause=cause,
                seconds_lost=seconds * part,
                steps=len(steps),
            )
            for cause, part in self._causes.items()
        ]
