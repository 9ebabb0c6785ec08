"""Sets of ranks that are slow for several windows in a row, and the seconds that they cost the job.

Each rank has a level: its median local time in a window. The healthy pace is a low quantile of the levels, so that up
to three quarters of the ranks may be slow. A rank is a candidate for a slow rank if its level is larger than the
healthy pace. The search names the smallest set of candidates that explains most of the lost time.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median_low, stdev

from perf_callbacks.kernel.records.rank_records import Straggler
from perf_callbacks.stragglers.peers import DEVICE, HOST, Peers, low, median

SLOW_SHARE = 0.05
"""A rank is slow in a window if its median local time exceeds the healthy pace by this part of a step."""

ERRORS = 5.0
"""A slow rank also meets a second condition: its median local time exceeds the healthy pace by this many standard
errors of the median."""

DEVIATION, MEDIAN = 1.4826, 1.2533
"""For normal distributions: the standard deviation divided by the median deviation, and the median's standard error
divided by the mean's standard error."""

BLOCKS = 5
"""A window is cut into this many parts, and the medians of the parts give a standard error. If times drift slowly, a
standard error from single steps is too small."""

KEPT_SHARE = 0.02
"""A reported rank stays slow while its median local time exceeds the healthy pace by this part of a step."""

LONG_WINDOWS, LONG_STEPS = 2, 30
"""A rank is reported if it was slow in `LONG_WINDOWS` or more consecutive windows, with at least `LONG_STEPS` steps in
total."""

MOST = 0.9
"""The named set of ranks must explain at least this part of the time that all candidates together cost the job."""

LEAST_WIN = 0.01
"""No set of ranks is named if all candidates together would save less than this part of a window.

For example, nothing is saved if no other rank waits for the slow ranks.
"""

MICRO_BATCHES = 32
"""Assumed number of micro-batches in a step of a pipeline, because ranks don't know the real number.

With 32 micro-batches, a stage waits in each step until every earlier stage has processed the first micro-batch. The
wait for the first micro-batch is 1/32 of the sum of the earlier stages' times.
"""

EXPLAINED = 16
"""Causes are examined for at most this many ranks of a set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowRank:
    """A rank, or a set of ranks, that was slow in at least two windows in a row."""

    rank: int
    """The slowest rank of the set."""
    ranks: tuple[int, ...] = ()
    """Numbers of all ranks of the set, in ascending order. Empty for a single rank."""
    step: int
    """Last step of the newest window."""
    steps: int
    """Number of steps in the windows in which the slowest rank was slow."""
    share: float
    """Extra time of the slowest rank in the newest window, compared with a healthy rank, divided by the step time."""
    causes: Mapping[str, float]
    """For each cause: the part of the set's excess that this cause explains. The largest part comes first."""


@dataclass(slots=True)
class ComparedStage:
    """Ranks that do the same work in one window: all ranks of the job, or all ranks of one pipeline stage."""

    peers: Peers
    times: list[Sequence[float]]
    """Local times of each rank in `peers`, after losses in single steps are subtracted. The rank's median replaces
    unknown times."""
    even: list[Sequence[float]]
    """Local times of each rank as they would be with batches of equal sizes."""
    pace: float = 0.0
    """Healthy pace: the lower quartile of the ranks' median local times."""
    before: float = 0.0
    """Seconds per step in which earlier pipeline stages are busy and this stage is idle."""

    def examine(self, step_seconds: float, rest: Callable[[], object]) -> dict[int, float]:
        """Set the healthy pace, and return the seconds per step by which slow ranks exceed this pace."""
        self.pace = low([median(self.even[place]) for place in self.peers.sample])
        if len(self.peers.ranks) == 1:
            return {}
        least = SLOW_SHARE * step_seconds
        found = {}
        for place, column in enumerate(self.even):
            rest()
            # A fast test: a mean this low has no median above the limit, unless many steps are faster than the pace.
            if sum(column) <= (self.pace + least / 2) * len(column):
                continue
            level = median_low(column)
            if level - self.pace > max(least, ERRORS * _error(column, level)):
                found[self.peers.ranks[place]] = level - self.pace
        return found


def _error(column: Sequence[float], level: float) -> float:
    """Return the standard error of a median.

    Of the estimate from single steps and the estimate from parts of the window, the larger counts.
    """
    steps = len(column)
    error = MEDIAN * DEVIATION * median([abs(seconds - level) for seconds in column]) / math.sqrt(steps)
    if steps < 2 * BLOCKS:
        return error
    length = steps // BLOCKS
    parts = [median_low(column[start : start + length]) for start in range(0, length * BLOCKS, length)]
    return max(error, stdev(parts) / math.sqrt(BLOCKS))


@dataclass(slots=True)
class ComparedWindow:
    """Ranks of one window whose local times can be compared, in the order of the pipeline stages."""

    numbers: Sequence[int]
    """Numbers of the steps in which the ranks were compared."""
    seconds: float
    """Median duration of a step."""
    stages: Sequence[ComparedStage]
    rest: Callable[[], object]
    excess: dict[int, float] = field(default_factory=dict)
    """Seconds per step by which each slow rank exceeds the healthy pace of its stage."""
    _where: dict[int, tuple[ComparedStage, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        before = 0.0
        for stage in self.stages:
            self.excess |= stage.examine(self.seconds, self.rest)
            stage.before, before = before, before + stage.pace / MICRO_BATCHES
            self.rest()
            self._where |= {rank: (stage, place) for place, rank in enumerate(stage.peers.ranks)}

    def undecided(self) -> set[int]:
        """Return the slow ranks that may be healthy ranks on devices, which wait for the other ranks.

        Where a wait is not seen, all ranks but the slow one look slow. So slow ranks on devices must be a minority. If
        time on the device is not the largest part of their excess, half of the ranks may be slow.
        """
        found: set[int] = set()
        for stage in self.stages:
            slow = [rank for rank in stage.peers.ranks if rank in self.excess]
            majority = 2 * len(slow) - len(stage.peers.ranks)
            if not slow or not stage.peers.waits_hidden or majority < 0:
                continue
            if majority > 0 or next(iter(self.causes(slow[:EXPLAINED]))) == DEVICE:
                found.update(slow)
        return found

    @property
    def ranks(self) -> Collection[int]:
        return self._where.keys()

    def level(self, rank: int) -> float:
        """Return the seconds per step by which a rank exceeds the healthy pace of its stage."""
        stage, place = self._where[rank]
        return median_low(stage.even[place]) - stage.pace

    def longest(self, without: Collection[int] = ()) -> list[float]:
        """Return the time of each step on its slowest rank. The ranks in `without` don't count."""
        found = [0.0] * len(self.numbers)
        for stage in self.stages:
            left_out = {self._where[rank][1] for rank in without if self._where[rank][0] is stage}
            columns = [column for place, column in enumerate(stage.times) if place not in left_out]
            self.rest()
            for step, row in enumerate(zip(*columns, strict=True)):
                self.rest()
                found[step] = max(found[step], max(row) + stage.before)
        return found

    def times(self, rank: int) -> list[float]:
        """Return the seconds of each step on a rank, including the wait for earlier pipeline stages."""
        stage, place = self._where[rank]
        return [seconds + stage.before for seconds in stage.times[place]]

    def smallest_set(self, excess: Mapping[int, float]) -> list[int]:
        """Return the smallest set of slow ranks that explains most of the lost seconds.

        The set is empty if all slow ranks together save too little.

        Args:
            excess: For each slow rank that may be in the set: the seconds per step by which the rank exceeds the
                healthy pace.
        """
        order = sorted(excess, key=lambda rank: (-excess[rank], rank))
        slow = [self.longest(without=order)]
        for rank in reversed(order):
            self.rest()
            slow.append([*map(max, slow[-1], self.times(rank))])
        slow.reverse()  # slow[count]: step times without the `count` slowest ranks
        healthy = [0.0] * len(self.numbers)
        wins = [0.0]
        for count, rank in enumerate(order, 1):
            self.rest()
            healthy = [*map(max, healthy, [seconds - excess[rank] for seconds in self.times(rank)])]
            wins.append(sum(slow[0]) - sum(map(max, slow[count], healthy)))
        if wins[-1] <= LEAST_WIN * self.seconds * len(self.numbers):
            return []
        return order[: next(count for count, win in enumerate(wins) if win >= MOST * wins[-1])]

    def heal(self, excess: Mapping[int, float], steps: Mapping[int, range]) -> tuple[float, list[int]]:
        """Subtract each slow rank's excess from its times in slow steps.

        Return the saved seconds, and the numbers of all slow steps.

        Args:
            excess: Seconds per step that each rank takes beyond the healthy pace.
            steps: For each rank: the positions of its slow steps.
        """
        if not any(steps.values()):
            return 0.0, []
        lost = sum(self.longest())
        for rank, places in steps.items():
            self.rest()
            stage, place = self._where[rank]
            column = [*stage.times[place]]
            for step in places:
                column[step] -= excess[rank]
            stage.times[place] = column
        return lost - sum(self.longest()), [self.numbers[step] for step in sorted(set().union(*steps.values()))]

    def slow_steps(self, rank: int, excess: float, *, at_end: bool) -> range:
        """Return the positions of a rank's slow steps at the beginning of the window or, if `at_end`, at its end.

        The method cuts the window where slow steps and usual steps are separated best. Two or three steps that are slow
        by chance don't count.
        """
        stage, place = self._where[rank]
        late = [seconds - stage.pace for seconds in stage.even[place]]
        gains = [*accumulate([one - excess / 2 for one in (reversed(late) if at_end else late)], initial=0.0)]
        count = gains.index(max(gains)) if max(gains) > excess else 0
        return range(len(late) - count, len(late)) if at_end else range(count)

    def causes(self, ranks: Iterable[int]) -> dict[str, float]:
        """Return the part of a set's excess that each cause explains, with the largest part first."""
        sums: dict[str, float] = {}
        for rank in ranks:
            stage, place = self._where[rank]
            for cause, part in stage.peers.explain(place, self.rest).items():
                sums[cause] = sums.get(cause, 0.0) + part * self.excess[rank]
        whole = sum(sums.values())
        if not whole:
            return {HOST: 1.0}
        return {cause: sums[cause] / whole for cause in sorted(sums, key=lambda one: -sums[one])}


class SlowSets:
    """Follows the slow ranks of a job from window to window."""

    def __init__(self) -> None:
        self._streaks: dict[int, tuple[int, int]] = {}
        """For each slow rank: the number of consecutive windows in which the rank was slow, and of steps in them."""
        self._told: dict[int, float] = {}  # excess of reported ranks
        self._causes: Mapping[str, float] = {}
        self._before: list[ComparedWindow] = []
        self.slow: SlowRank | None = None

    def keep(self, window: ComparedWindow) -> None:
        """Add a reported rank to the window's slow ranks if its excess is larger than `KEPT_SHARE` of a step.

        `KEPT_SHARE` is smaller than `SLOW_SHARE`, so that the set of named ranks rarely changes from window to window.
        A rank that recovered within the window is not added.
        """
        for rank in sorted(self._told.keys() & window.ranks - window.excess.keys()):
            more, before = window.level(rank), self._told[rank]
            if more <= KEPT_SHARE * window.seconds:
                continue
            if more > before / 2 or not window.slow_steps(rank, before, at_end=False):
                window.excess[rank] = more

    def find(self, window: ComparedWindow) -> list[Straggler]:
        """Return records of the seconds that ranks cost the job if they are slow for several windows.

        If a rank becomes slow or recovers within a window, the slow part of this window counts too.
        """
        self.slow = None
        excess, everything = window.excess, range(len(window.numbers))
        ended = {rank: more for rank, more in self._told.items() if rank not in excess and rank in window.ranks}
        after = {rank: window.slow_steps(rank, more, at_end=False) for rank, more in ended.items()}
        after = {rank: steps for rank, steps in after.items() if steps}
        found = self._records(after, ended, [window.heal(ended, after)])
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
            found += self._earlier({rank: excess[rank] for rank in named if rank not in self._told})
            self.slow = SlowRank(
                rank=named[0],
                ranks=tuple(sorted(named)) if len(named) > 1 else (),
                step=window.numbers[-1],
                steps=self._streaks[named[0]][1],
                share=excess[named[0]] / window.seconds,
                causes=self._causes,
            )
            found += self._records(named, excess, [window.heal(excess, dict.fromkeys(named, everything))])
        self._told = {rank: excess[rank] for rank in named}
        self._before.append(window)
        while len(self._before) > LONG_WINDOWS and sum([len(one.numbers) for one in self._before[1:]]) > LONG_STEPS:
            self._before.pop(0)
        return found

    def _earlier(self, excess: Mapping[int, float]) -> list[Straggler]:
        """Return what these ranks cost the job in earlier windows.

        A rank's cost begins with the step in which it became slow.
        """
        slow, lost = {*excess}, []
        for window in reversed(self._before):
            steps, more = {}, {}
            for rank in [*slow]:
                more[rank] = window.excess.get(rank, excess[rank])
                if rank in window.excess:
                    steps[rank] = range(len(window.numbers))
                    continue
                slow.discard(rank)
                if rank in window.ranks:
                    steps[rank] = window.slow_steps(rank, excess[rank], at_end=True)
            lost.append(window.heal(more, steps))
        return self._records(excess, excess, lost)

    def _records(
        self, ranks: Iterable[int], excess: Mapping[int, float], lost: Sequence[tuple[float, Sequence[int]]]
    ) -> list[Straggler]:
        """Return journal records of the seconds that a set of ranks cost in some windows: one record for each cause."""
        order = sorted(ranks, key=lambda rank: (-excess[rank], rank))
        seconds = sum([one for one, _ in lost])
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
