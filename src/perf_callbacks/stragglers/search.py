"""Search for stragglers: which ranks made other ranks wait, why, and how many seconds the job lost.

All ranks leave a collective together, and each measures with its own clock how long it works until it waits again:
durations can be compared between clocks. This file finds the causes of single slow steps, `slow_sets.py` ranks that
stay slow, and `uneven.py` seconds that are lost to uneven work or to chance.
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
"""A named rank costs a step more than both: this share of a median step, and these seconds."""

EXACT = frozenset({GC, STEAL})
"""Measured directly. They come first, since waiting for data may include some of their time."""

DEVIATIONS = 8 * 1.4826
"""Median deviations (of 1 / 1.4826 standard deviations) above the usual loss, from which causes not in `EXACT`
count."""

MEMORY = 200
"""Latest steps whose median loss is the usual one."""

SHORTAGE = 2.0
"""Usual waits for a CPU that raise the smallest loss, unless the cause is in `EXACT`: times vary more on busy CPUs."""

SORTS = frozenset({STEAL, DEVICE})
"""Signals by whose presence ranks are comparable: waits are timed, or forward and optimizer on a device, or neither."""

Who = tuple[int, ...]
"""Ascending."""

_Kind = tuple[int, frozenset[str]]
"""Kind of a rank's work, and which of `SORTS` it has."""


class Stragglers:
    """Finds stragglers in each window, and adds up the lost seconds. Memory use doesn't grow with more steps."""

    def __init__(self) -> None:
        self._groups: dict[object, _Group] = {}
        self._sets: dict[object, SlowSets] = {}
        self._sums: dict[tuple[Who, str], Straggler] = {}
        """The newest straggler of each set of ranks and cause, with the sums of all."""
        self.steps = 0
        """That were compared."""
        self.seconds = self.uneven_seconds = 0.0
        """Of the compared steps; and the part that slow ranks and uneven work cost."""
        self.uneven_batches_seconds = self.uneven_stages_seconds = self.chance_seconds = 0.0
        """Parts of `uneven_seconds`: batches, pipeline stages, and chance."""
        self.other_work = 0
        """Ranks that the newest window left out, because no other rank does the same work."""
        self.undecided_steps = 0
        """In windows in which it is undecided which ranks are slow. See `ComparedWindow.undecided`."""
        self._undecided_seconds = 0.0
        self._several = self._undecided = False

    def window(
        self,
        numbers: Sequence[int],
        ranks: Mapping[int, Signals],
        roles: Mapping[int, Mapping[str, int]] | None = None,
        yield_gil: Callable[[], object] = lambda: None,
    ) -> list[Straggler]:
        """Leave out ranks without one value per step. `yield_gil` is called after slices of less than a millisecond."""
        roles = roles or {}
        work, self.other_work = _groups(len(numbers), ranks, roles, yield_gil)
        for kind in self._sets.keys() - {kind for _, kind in work}:
            del self._sets[kind]
        if not work:
            return []
        sample = ranks[min(map(min, work.values()))]
        step_seconds = [*sample.get(STEP, sample[LOCAL])]  # of any rank, as all ranks wait for each other
        usual = median(known(step_seconds))
        stragglers: list[Straggler] = []
        teams: dict[_Kind, list[_Compared]] = {}
        for like in sorted(work, key=repr):
            group = sorted(work[like])
            yield_gil()
            signals = [ranks[rank] for rank in group]
            peers = Peers(group, without_batch_size(signals, yield_gil))
            compared = [*peers.compare(yield_gil)]
            events = self._groups.setdefault(like, _Group()).find(numbers, peers, compared, usual)
            stragglers += events
            teams.setdefault(like[1], []).append(_Compared(peers, signals, compared, events))
        self._undecided = False
        if len(ranks) > 1:
            self._several = True
            durations = dict(zip(numbers, step_seconds, strict=True))
            costs: list[tuple[float, UnevenLoss]] = []
            for kind, team in teams.items():
                slow, seconds, lost = self._team(kind, team, durations, roles, yield_gil)
                stragglers += slow
                costs.append((seconds, lost))
            self._add(*max(costs, key=itemgetter(0)))
        self.steps += len(known(step_seconds))
        self.seconds += sum(known(step_seconds))
        if self._undecided:
            self.undecided_steps += len(known(step_seconds))
            self._undecided_seconds += sum(known(step_seconds))
        for straggler in stragglers:
            who = straggler.ranks or (straggler.rank,), straggler.cause
            before = self._sums.get(who, replace(straggler, seconds_lost=0.0, steps=0))
            seconds, times = before.seconds_lost + straggler.seconds_lost, before.steps + straggler.steps
            self._sums[who] = replace(straggler, seconds_lost=seconds, steps=times)
        return sorted(stragglers, key=lambda event: (event.step, event.rank, event.cause))

    def _team(
        self,
        kind: object,
        team: Sequence["_Compared"],
        durations: Mapping[int, float],
        roles: Mapping[int, Mapping[str, int]],
        yield_gil: Callable[[], object],
    ) -> tuple[list[Straggler], float, UnevenLoss]:
        """Return the sets of slow ranks among all ranks of one kind, their cost, and the cost that is no rank's fault.

        Ranks of a group in `team` do the same work; `durations` are by number of the step, NaN if unknown.
        """
        numbers = [*durations]
        steps = sorted(set.intersection(*[{step.step for step in group.steps} for group in team]))
        steps = [step for step in steps if not math.isnan(durations[numbers[step]])]
        if not steps or sum([len(group.peers.ranks) for group in team]) < 2:  # noqa: PLR2004 two ranks can be compared
            return [], 0.0, UnevenLoss()
        stages = [group.stage(numbers, steps, yield_gil) for group in team]
        kept = [numbers[step] for step in steps]
        seconds = [durations[number] for number in kept]
        window = ComparedWindow(kept, median(seconds), stages, yield_gil)
        sets = self._sets.setdefault(kind, SlowSets())
        sets.keep(window)
        if undecided := window.undecided():
            self._undecided = True
            window.excess = {rank: seconds for rank, seconds in window.excess.items() if rank not in undecided}
            return sets.find(window), 0.0, UnevenLoss()
        replicas = {rank: replica(roles.get(rank, {})) for rank in window.ranks} if len(team) > 1 else {}
        lost = uneven(window, replicas, sum(seconds), yield_gil)
        saved = lost.seconds + sum([event.seconds_lost for group in team for event in group.events])
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
        return [sets.slow for sets in self._sets.values() if sets.slow is not None]

    def costliest(self, most: int) -> list[Straggler]:
        """Return the costliest sets, each with cheaper smaller ones of its cause: in a window, ranks may be absent."""
        sets: list[Straggler] = []
        for straggler in sorted(self._sums.values(), key=lambda row: row.seconds_lost, reverse=True):
            ranks = straggler.ranks or (straggler.rank,)
            for place, larger in enumerate(sets):
                if larger.cause == straggler.cause and {*ranks} < {*larger.ranks}:
                    seconds, steps = larger.seconds_lost + straggler.seconds_lost, larger.steps + straggler.steps
                    sets[place] = replace(larger, seconds_lost=seconds, steps=min(steps, self.steps))
                    break
            else:
                sets.append(straggler)
        return sorted(sets, key=lambda row: row.seconds_lost, reverse=True)[:most]

    @property
    def causes(self) -> dict[str, float]:
        """Seconds that the job lost to each."""
        sums: dict[str, float] = dict.fromkeys(CAUSES, 0.0)
        for straggler in self._sums.values():
            sums[straggler.cause] += straggler.seconds_lost
        return {cause: seconds for cause, seconds in sums.items() if seconds}

    @property
    def slowdown(self) -> float | None:
        """Time of the steps by that with healthy ranks and even work. None: one rank, or it is undecided."""
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

    def stage(self, numbers: Sequence[int], steps: Sequence[int], yield_gil: Callable[[], object]) -> ComparedStage:
        """Return the ranks' local times in `steps`, without the seconds that stragglers cost in single steps."""
        extras = extra_seconds(self.signals, yield_gil)
        lost: dict[tuple[int, int], float] = {}
        for event in self.events:
            lost[event.rank, event.step] = lost.get((event.rank, event.step), 0.0) + event.seconds_lost
        whole = len(steps) == len(numbers)
        hit = {rank for rank, _ in lost}
        times: list[Sequence[float]] = []
        even: list[Sequence[float]] = []
        for place, (rank, signals) in enumerate(zip(self.peers.ranks, self.signals, strict=True)):
            yield_gil()
            column: Sequence[float] = signals[LOCAL]
            if rank in hit:
                column = [
                    seconds - lost.get((rank, number), 0.0) for seconds, number in zip(column, numbers, strict=True)
                ]
            if not whole or math.isnan(sum(column)):
                usual = median_low(known(column) or [0.0])
                column = [usual if math.isnan(column[step]) else column[step] for step in steps]
            times.append(column)
            if extras is not None:
                even.append([column[at] - extras[place][step] for at, step in enumerate(steps)])
        return ComparedStage(self.peers, times, times if extras is None else even)


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
            noise.extend([min(step.late, step.gains[cause]) for step in compared])
            middle = median(noise)
            spread = median([abs(seconds - middle) for seconds in noise])
            limits[cause] = max(least, middle + DEVIATIONS * spread) + SHORTAGE * peers.usual(STEAL)
        stragglers = []
        for step in compared:
            left = step.gain
            for cause in sorted(step.gains, key=lambda cause: (cause not in EXACT, -step.gains[cause])):
                lost = min(step.gains[cause], left)
                if min(lost, step.late) > limits[cause] and len(peers.ranks) > 1:
                    lost -= min(lost, peers.common(step.step, cause))
                if min(lost, step.late) > limits[cause]:
                    left -= lost
                    rank = peers.ranks[step.slowest]
                    stragglers.append(Straggler(step=numbers[step.step], rank=rank, cause=cause, seconds_lost=lost))
        return stragglers


def _groups(
    steps: int, ranks: Mapping[int, Signals], roles: Mapping[int, Mapping[str, int]], yield_gil: Callable[[], object]
) -> tuple[dict[tuple[Role, _Kind], list[int]], int]:
    """Return groups of the same work and the same measure, and the number of ranks with unknown or unique work."""
    work: dict[tuple[Role, _Kind], list[int]] = {}
    measured = 0
    for rank, signals in ranks.items():
        yield_gil()
        if len(signals.get(LOCAL, ())) == steps:
            measured += 1
            role = roles.get(rank, {})
            kind = kind_of(role)
            if kind is not None:
                work.setdefault((layers(role), (kind, SORTS.intersection(signals))), []).append(rank)
    kinds = Counter([layers for layers, _ in work])
    comparable = {like: group for like, group in work.items() if len(group) > 1 or kinds[like[0]] == 1}
    return comparable, measured - sum(map(len, comparable.values()))
