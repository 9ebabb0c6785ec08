"""Search for stragglers: it finds which ranks made other ranks wait, why, and how many seconds the job lost.

All ranks leave a collective together. Each rank measures with its own clock how long it works until it waits for other
ranks again. Durations can be compared between ranks, although the ranks' clocks may differ. The search finds the causes
of single slow steps. `slow_sets.py` finds ranks that stay slow. `uneven.py` finds seconds that are lost to uneven work
or to chance.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import median_low

from perf_callbacks.kernel.records.rank_records import Straggler
from perf_callbacks.stragglers.even_work import extra_seconds, without_batch_size
from perf_callbacks.stragglers.peers import (
    CAUSES,
    DEVICE,
    GC,
    LOCAL,
    STEAL,
    STEP,
    Compared,
    Peers,
    Signals,
    known,
    median,
)
from perf_callbacks.stragglers.slow_sets import ComparedStage, ComparedWindow, SlowRank, SlowSets
from perf_callbacks.stragglers.uneven import UnevenLoss, uneven
from perf_callbacks.stragglers.work_kinds import Role, kind_of, layers, replica

LEAST_SHARE, LEAST_SECONDS = 0.25, 0.003
"""A rank is named if it costs a step more than `LEAST_SHARE` of a median step, and more than `LEAST_SECONDS`."""

EXACT = frozenset({GC, STEAL})
"""Causes that are measured directly. These causes come first, since waiting for data may include some of their time."""

DEVIATIONS = 8 * 1.4826
"""A loss must exceed the usual loss by this many median deviations to count, unless its cause is in `EXACT`.

A standard deviation is 1.4826 median deviations.
"""

MEMORY = 200
"""The usual loss is the median of the losses in this many latest steps."""

SHORTAGE = 2.0
"""The smallest loss that counts is raised by `SHORTAGE` times the usual wait for a CPU, unless the cause is in `EXACT`.
Times vary more on busy CPUs."""

SORTS = frozenset({STEAL, DEVICE})
"""Signals that show how local times were measured. Only times that were measured in the same way are compared.

A rank that times its thread's waits has the signal `STEAL`. A rank has the signal `DEVICE` if the rank computes on a
device and times forward and optimizer. A rank has neither signal if it times only the stages outside of the model.
"""

Who = tuple[int, ...]
"""Numbers of the ranks in a set, in ascending order."""

_Kind = tuple[int, frozenset[str]]
"""Kind of a rank's work, and the names of those of the rank's signals that are in `SORTS`."""


class Stragglers:
    """Finds stragglers in each window, and adds up the lost seconds. Memory use doesn't grow with more steps."""

    def __init__(self) -> None:
        self._groups: dict[object, _Group] = {}
        self._sets: dict[object, SlowSets] = {}
        self._sums: dict[tuple[Who, str], Straggler] = {}
        """For each set of ranks and each cause: the newest straggler, with the sums of all seconds and steps."""
        self.steps = 0
        """Number of steps that were compared."""
        self.seconds = self.uneven_seconds = 0.0
        """`seconds`: duration of the compared steps. `uneven_seconds`: the part of this duration that slow ranks and
        uneven work cost."""
        self.uneven_batches_seconds = self.uneven_stages_seconds = self.chance_seconds = 0.0
        """Parts of `uneven_seconds`: seconds lost to uneven batches, to uneven pipeline stages, and to chance."""
        self.other_work = 0
        """Number of ranks that the newest window left out, because no other rank does the same work."""
        self.undecided_steps = 0
        """Number of steps in windows in which it is undecided which ranks are slow. See `ComparedWindow.undecided`."""
        self._undecided_seconds = 0.0
        self._several = self._undecided = False

    def window(
        self,
        numbers: Sequence[int],
        ranks: Mapping[int, Signals],
        roles: Mapping[int, Mapping[str, int]] | None = None,
        rest: Callable[[], object] = lambda: None,
    ) -> list[Straggler]:
        """Compare the ranks of a window, and return the stragglers found.

        Args:
            numbers: Numbers of the window's steps.
            ranks: Signals of each rank. A rank is left out if its signals don't have one value per step.
            roles: Coordinates of each rank, such as its pipeline stage.
            rest: Function to call between slices of the work. Each slice takes less than a millisecond.
        """
        roles = roles or {}
        work, self.other_work = _groups(len(numbers), ranks, roles, rest)
        for kind in self._sets.keys() - {kind for _, kind in work}:
            del self._sets[kind]
        if not work:
            return []
        one = ranks[min(map(min, work.values()))]
        step_seconds = [*one.get(STEP, one[LOCAL])]  # of any rank, as all ranks wait for each other
        usual = median(known(step_seconds))
        found: list[Straggler] = []
        teams: dict[_Kind, list[_Compared]] = {}
        for like in sorted(work, key=repr):
            group = sorted(work[like])
            rest()
            signals = [ranks[rank] for rank in group]
            peers = Peers(group, without_batch_size(signals, rest))
            compared = [*peers.compare(rest)]
            events = self._groups.setdefault(like, _Group()).find(numbers, peers, compared, usual)
            found += events
            teams.setdefault(like[1], []).append(_Compared(peers, signals, compared, events))
        self._undecided = False
        if len(ranks) > 1:
            self._several = True
            durations = dict(zip(numbers, step_seconds, strict=True))
            costs: list[tuple[float, UnevenLoss]] = []
            for kind, team in teams.items():
                slow, seconds, lost = self._team(kind, team, durations, roles, rest)
                found += slow
                costs.append((seconds, lost))
            self._add(*max(costs, key=itemgetter(0)))
        self.steps += len(known(step_seconds))
        self.seconds += sum(known(step_seconds))
        if self._undecided:
            self.undecided_steps += len(known(step_seconds))
            self._undecided_seconds += sum(known(step_seconds))
        for straggler in found:
            who = straggler.ranks or (straggler.rank,), straggler.cause
            before = self._sums.get(who, replace(straggler, seconds_lost=0.0, steps=0))
            seconds, times = before.seconds_lost + straggler.seconds_lost, before.steps + straggler.steps
            self._sums[who] = replace(straggler, seconds_lost=seconds, steps=times)
        return sorted(found, key=lambda one: (one.step, one.rank, one.cause))

    def _team(
        self,
        kind: object,
        team: Sequence["_Compared"],
        durations: Mapping[int, float],
        roles: Mapping[int, Mapping[str, int]],
        rest: Callable[[], object],
    ) -> tuple[list[Straggler], float, UnevenLoss]:
        """Return the sets of slow ranks among all ranks of one kind, and the cost of slow ranks and uneven work.

        The `UnevenLoss` is the part of the cost for which no rank is to blame.

        Args:
            kind: Kind of work, and the signals of `SORTS` that each rank has.
            team: Groups of ranks. The ranks of a group do the same work.
            durations: Seconds of each step of the window, by the step's number. Unknown seconds are NaN.
            roles: Coordinates of each rank.
            rest: Function to call between slices of the work.
        """
        numbers = [*durations]
        steps = sorted(set.intersection(*[{step.step for step in one.steps} for one in team]))
        steps = [step for step in steps if not math.isnan(durations[numbers[step]])]
        if not steps or sum([len(one.peers.ranks) for one in team]) < 2:  # noqa: PLR2004 two ranks can be compared
            return [], 0.0, UnevenLoss()
        stages = [one.stage(numbers, steps, rest) for one in team]
        kept = [numbers[step] for step in steps]
        seconds = [durations[number] for number in kept]
        window = ComparedWindow(kept, median(seconds), stages, rest)
        sets = self._sets.setdefault(kind, SlowSets())
        sets.keep(window)
        if undecided := window.undecided():
            self._undecided = True
            window.excess = {rank: more for rank, more in window.excess.items() if rank not in undecided}
            return sets.find(window), 0.0, UnevenLoss()
        replicas = {rank: replica(roles.get(rank, {})) for rank in window.ranks} if len(team) > 1 else {}
        lost = uneven(window, replicas, sum(seconds), rest)
        saved = lost.seconds + sum([event.seconds_lost for one in team for event in one.events])
        if window.excess:
            saved += sum(window.longest()) - lost.healthy
        return sets.find(window), min(saved, sum(seconds)), lost

    def _add(self, seconds: float, lost: UnevenLoss) -> None:
        self.uneven_seconds += seconds
        self.uneven_batches_seconds += lost.batches
        self.uneven_stages_seconds += lost.stages
        self.chance_seconds += lost.chance

    @property
    def slow(self) -> list[SlowRank]:
        return [one.slow for one in self._sets.values() if one.slow is not None]

    def costliest(self, most: int) -> list[Straggler]:
        """Return the costliest ranks and sets of ranks, with the sums of their seconds and steps.

        From window to window, a set may lack some of its ranks. So a set includes the sums of each smaller set that it
        contains, if the smaller set has the same cause and cost less.
        """
        sets: list[Straggler] = []
        for straggler in sorted(self._sums.values(), key=lambda one: one.seconds_lost, reverse=True):
            ranks = straggler.ranks or (straggler.rank,)
            for place, larger in enumerate(sets):
                if larger.cause == straggler.cause and {*ranks} < {*larger.ranks}:
                    seconds, steps = larger.seconds_lost + straggler.seconds_lost, larger.steps + straggler.steps
                    sets[place] = replace(larger, seconds_lost=seconds, steps=min(steps, self.steps))
                    break
            else:
                sets.append(straggler)
        return sorted(sets, key=lambda one: one.seconds_lost, reverse=True)[:most]

    @property
    def causes(self) -> dict[str, float]:
        """For each cause: the seconds that the job lost."""
        sums: dict[str, float] = dict.fromkeys(CAUSES, 0.0)
        for one in self._sums.values():
            sums[one.cause] += one.seconds_lost
        return {cause: seconds for cause, seconds in sums.items() if seconds}

    @property
    def slowdown(self) -> float | None:
        """Duration of the steps, divided by their duration with healthy ranks and even work.

        None for a single rank, and if it is undecided which ranks are slow.
        """
        decided = self.seconds - self._undecided_seconds
        rest = decided - self.uneven_seconds
        return decided / rest if rest > 0 and self._several else None


@dataclass(frozen=True, slots=True)
class _Compared:
    """Ranks that do the same work in one window, and their stragglers in single steps."""

    peers: Peers
    signals: Sequence[Signals]
    steps: Sequence[Compared]
    events: Sequence[Straggler]

    def stage(self, numbers: Sequence[int], steps: Sequence[int], rest: Callable[[], object]) -> ComparedStage:
        """Return the ranks' local times in `steps`, without the seconds that stragglers cost in single steps."""
        more = extra_seconds(self.signals, rest)
        lost: dict[tuple[int, int], float] = {}
        for event in self.events:
            lost[event.rank, event.step] = lost.get((event.rank, event.step), 0.0) + event.seconds_lost
        whole = len(steps) == len(numbers)
        hit = {rank for rank, _ in lost}
        times: list[Sequence[float]] = []
        even: list[Sequence[float]] = []
        for place, (rank, signals) in enumerate(zip(self.peers.ranks, self.signals, strict=True)):
            rest()
            column: Sequence[float] = signals[LOCAL]
            if rank in hit:
                column = [
                    seconds - lost.get((rank, number), 0.0) for seconds, number in zip(column, numbers, strict=True)
                ]
            if not whole or math.isnan(sum(column)):
                usual = median_low(known(column) or [0.0])
                column = [usual if math.isnan(column[step]) else column[step] for step in steps]
            times.append(column)
            if more is not None:
                even.append([column[at] - more[place][step] for at, step in enumerate(steps)])
        return ComparedStage(self.peers, times, times if more is None else even)


class _Group:
    """Ranks that do the same work, over all windows."""

    def __init__(self) -> None:
        self._noise: dict[str, deque[float]] = {}

    def find(
        self, numbers: Sequence[int], peers: Peers, compared: Sequence[Compared], step_seconds: float
    ) -> list[Straggler]:
        """Find the rank and the cause of each unusually large loss in a step."""
        least = max(LEAST_SHARE * step_seconds, LEAST_SECONDS)
        limits = dict.fromkeys(EXACT, least)
        for cause in compared[0].gains.keys() - EXACT if compared else ():
            noise = self._noise.setdefault(cause, deque(maxlen=MEMORY))
            noise.extend([min(one.late, one.gains[cause]) for one in compared])
            middle = median(noise)
            spread = median([abs(seconds - middle) for seconds in noise])
            limits[cause] = max(least, middle + DEVIATIONS * spread) + SHORTAGE * peers.usual(STEAL)
        found = []
        for one in compared:
            left = one.gain
            for cause in sorted(one.gains, key=lambda cause: (cause not in EXACT, -one.gains[cause])):
                lost = min(one.gains[cause], left)
                if min(lost, one.late) > limits[cause] and len(peers.ranks) > 1:
                    lost -= min(lost, peers.common(one.step, cause))
                if min(lost, one.late) > limits[cause]:
                    left -= lost
                    rank = peers.ranks[one.slowest]
                    found.append(Straggler(step=numbers[one.step], rank=rank, cause=cause, seconds_lost=lost))
        return found


def _groups(
    steps: int, ranks: Mapping[int, Signals], roles: Mapping[int, Mapping[str, int]], rest: Callable[[], object]
) -> tuple[dict[tuple[Role, _Kind], list[int]], int]:
    """Return groups of comparable ranks, and the number of ranks that are in no group.

    The ranks of a group do the same work and measure local times in the same way. A rank is in no group if its kind of
    work is unknown. A rank is also in no group if it can be compared with none of the other ranks that compute the same
    layers.
    """
    work: dict[tuple[Role, _Kind], list[int]] = {}
    measured = 0
    for rank, signals in ranks.items():
        rest()
        if len(signals.get(LOCAL, ())) == steps:
            measured += 1
            role = roles.get(rank, {})
            kind = kind_of(role)
            if kind is not None:
                work.setdefault((layers(role), (kind, SORTS.intersection(signals))), []).append(rank)
    kinds = Counter([layers for layers, _ in work])
    found = {like: group for like, group in work.items() if len(group) > 1 or kinds[like[0]] == 1}
    return found, measured - sum(map(len, found.values()))
