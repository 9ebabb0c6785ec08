"""The search for stragglers: which ranks made other ranks wait, why, and how many seconds the job lost.

After a collective all ranks go on together. Each rank measures, on its own clock, the time from there until it waits
again. These times can be compared between ranks, although clocks can't. The slowest rank sets the pace: the job loses
the seconds that this rank took beyond the other ranks.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from perf_callbacks.kernel.records.fit_records import Straggler
from perf_callbacks.stragglers.even_work import without_batch_size
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

STAGES = frozenset({"pipeline", "pipe", "pp"})
"""Coordinates of a rank that decide which layers it computes. Ranks are compared if these are equal."""

LEAST_SHARE, LEAST_SECONDS = 0.25, 0.003
"""Part of a median step, and seconds, that a step must lose before a rank is named."""

EXACT = frozenset({GC, STEAL})
"""Causes that are measured directly. Waiting for data includes some of this time, so these causes come first."""

DEVIATIONS = 8 * 1.4826
"""For the other causes, a step must lose this many median deviations more than usual. 1.4826 median deviations are a
standard deviation."""

MEMORY = 200
"""Number of last steps whose losses define the usual loss."""

SHORTAGE = 2.0
"""Limits of the other causes grow by this multiple of the usual wait for a CPU: if CPUs are short, all times vary."""

KINDS = frozenset({STEAL, DEVICE})
"""Signals that distinguish kinds of local times: up to the last gradient, of stages on a device, or of stages. Only
times of the same kind are compared, because some kinds include the backward."""

SLICE = 256
"""Ranks whose roles are read in one slice of the work."""

SLOW_SHARE, SLOW_STEPS = 0.05, 0.6
"""A rank is slow in a window if it takes this part of a step longer than a usual rank, and is the slowest in this
part of the steps."""

LONG_WINDOWS, LONG_STEPS = 2, 30
"""A slow rank is reported after this many windows in a row, with this many steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowRank:
    """A rank that was slow in at least two windows in a row."""

    rank: int
    step: int
    """Last step of the newest window."""
    steps: int
    """Steps of these windows."""
    share: float
    """Part of a step that the rank takes longer than a usual rank, in the newest window."""
    causes: Mapping[str, float]
    """Part of this difference that each cause explains, the largest first."""


class _Slowest(NamedTuple):
    """The slowest rank of a step in which no single fault was named."""

    step: int
    rank: int
    late: float
    """Seconds that the rank took beyond a usual rank."""
    ahead: float
    """Seconds that the rank took beyond the second slowest."""


@dataclass(slots=True)
class _SlowPeriod:
    """Windows in a row in which one rank was slow."""

    rank: int
    more: float = 0.0
    """Seconds per step that the rank takes beyond a usual rank, in the newest window."""
    usual: float = 0.0
    """Average lead of the rank, in seconds per step, before it was slow: by chance, some rank is always the slowest."""
    causes: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    windows: int = 0
    told: bool = False
    """True once the slow period was long enough to be reported."""

    def begin(self, leads: Sequence[_Slowest]) -> list[Straggler]:
        """Return the losses in the windows before, from the step in which the rank became slow."""
        place = len(leads) - self._slow_steps(leads[::-1])
        self.usual = sum([lead.ahead for lead in leads[:place] if lead.rank == self.rank]) / max(1, place)
        return self.lost(leads[place:])

    def end(self, leads: Sequence[_Slowest]) -> list[Straggler]:
        """Return the losses in the window after, up to the step in which the rank recovered."""
        return self.lost(leads[: self._slow_steps(leads)])

    def lost(self, leads: Sequence[_Slowest]) -> list[Straggler]:
        """Return the losses in these steps: the rank's lead, minus its average lead before the slow period."""
        mine = [lead for lead in leads if lead.rank == self.rank]
        lost = sum([lead.ahead for lead in mine]) - self.usual * len(leads)
        return [
            Straggler(step=mine[-1].step, rank=self.rank, cause=cause, seconds_lost=lost * part, steps=len(mine))
            for cause, part in self.causes.items()
            if lost > 0
        ]

    def _slow_steps(self, leads: Sequence[_Slowest]) -> int:
        """Return the number of slow steps at the beginning, at the best split between slow and usual steps.

        Two or three steps that are slow by chance count as 0.
        """
        late = [lead.late if lead.rank == self.rank else 0.0 for lead in leads]
        gains = [*accumulate([seconds - self.more / 2 for seconds in late], initial=0.0)]
        return gains.index(max(gains)) if max(gains) > self.more else 0


class Stragglers:
    """Finds stragglers, window by window, and adds up the lost seconds. Memory doesn't grow with the steps."""

    def __init__(self) -> None:
        self._groups: dict[object, _Group] = {}
        self.lost: dict[tuple[int, str], float] = {}
        """Seconds that the job lost, by rank and cause."""
        self.times: Counter[tuple[int, str]] = Counter()
        """Number of steps with a loss, by rank and cause."""
        self.steps = 0
        """Steps that were compared."""
        self.seconds = self.uneven_seconds = 0.0
        """Duration of these steps, and the seconds saved if each rank were as fast as a usual rank."""
        self._several = False

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
            ranks: Signals by rank. A rank with another number of steps is left out.
            roles: Coordinates of the ranks, such as their pipeline stage.
            rest: Called between slices of the work, each of which takes less than a millisecond.
        """
        steps = len(numbers)
        work: dict[tuple[object, object], list[int]] = {}
        for place, (rank, signals) in enumerate(ranks.items()):
            if place % SLICE == 0:
                rest()
            if len(signals.get(LOCAL, ())) == steps:
                role = _work(roles[rank]) if roles and rank in roles else ()
                work.setdefault((role, KINDS.intersection(signals)), []).append(rank)
        kinds = Counter([role for role, _ in work])
        work = {like: group for like, group in work.items() if len(group) > 1 or kinds[like[0]] == 1}
        for like in self._groups.keys() - work.keys():
            self._groups[like].skip()
        if not work:
            return []
        one = ranks[min(map(min, work.values()))]
        durations = known(one.get(STEP, one[LOCAL]))  # of any rank, as all ranks wait for each other
        uneven = [0.0] * steps
        found: list[Straggler] = []
        for like, group in work.items():
            group.sort()
            rest()
            peers = Peers(group, without_batch_size([ranks[rank] for rank in group], rest))
            compared = []
            for step in peers.compare():
                rest()
                if step is not None:
                    compared.append(step)
                    uneven[step.step] = max(uneven[step.step], step.late)
            found += self._groups.setdefault(like, _Group()).find(numbers, peers, compared, median(durations))
        self._several |= len(ranks) > 1
        self.steps += len(durations)
        self.seconds += sum(durations)
        self.uneven_seconds += sum(uneven) if len(ranks) > 1 else 0.0
        for straggler in found:
            who = straggler.rank, straggler.cause
            self.lost[who] = self.lost.get(who, 0.0) + straggler.seconds_lost
            self.times[who] += straggler.steps
        return sorted(found, key=lambda one: (one.step, one.rank, one.cause))

    @property
    def slow(self) -> list[SlowRank]:
        """Slow ranks of the newest window, at most a single rank per group that is compared."""
        return [group.slow for group in self._groups.values() if group.slow is not None]

    @property
    def causes(self) -> dict[str, float]:
        """Seconds lost by cause."""
        sums: dict[str, float] = dict.fromkeys(CAUSES, 0.0)
        for (_, cause), seconds in self.lost.items():
            sums[cause] += seconds
        return {cause: seconds for cause, seconds in sums.items() if seconds}

    @property
    def slowdown(self) -> float | None:
        """Ratio of the steps' duration to the duration without slow ranks. None: the job has a single rank."""
        rest = self.seconds - self.uneven_seconds
        return self.seconds / rest if rest > 0 and self._several else None


class _Group:
    """Ranks that do the same work, over all windows."""

    def __init__(self) -> None:
        self._noise: dict[str, deque[float]] = {}
        self._spell: _SlowPeriod | None = None
        self._leads: list[_Slowest] = []  # of the last windows, unless reported
        self.slow: SlowRank | None = None

    def find(
        self, numbers: Sequence[int], peers: Peers, compared: Sequence[Compared], step_seconds: float
    ) -> list[Straggler]:
        """Find the stragglers of a window."""
        found = self._events(numbers, peers, compared, step_seconds)
        if len(peers.ranks) > 1:
            found += self._persistent(numbers, peers, compared, step_seconds, {one.step for one in found})
        return found

    def skip(self) -> None:
        """Skip a window in which these ranks weren't compared: a slow rank counts as recovered."""
        self._spell = self.slow = None
        self._leads = []

    def _events(
        self, numbers: Sequence[int], peers: Peers, compared: Sequence[Compared], step_seconds: float
    ) -> list[Straggler]:
        """Find rank and cause of each step with an unusually large loss."""
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

    def _persistent(
        self, numbers: Sequence[int], peers: Peers, compared: Sequence[Compared], step_seconds: float, named: set[int]
    ) -> list[Straggler]:
        """Find the rank that is slow for several windows in a row, and return its losses.

        A rank may become slow, or recover, within a window. The slow part of that window counts too.
        """
        leads = [_Slowest(numbers[one.step], peers.ranks[one.slowest], one.late, one.ahead) for one in compared]
        leads = [lead for lead in leads if lead.step not in named]
        before, last = self._leads, self._spell
        self._leads = [*before, *leads][-(LONG_WINDOWS + 1) * len(numbers) :]
        self._spell = self.slow = None
        place = _slowest(peers, compared)
        more = 0.0 if place is None else peers.more(place, LOCAL)
        rank = None if place is None or more <= SLOW_SHARE * step_seconds else peers.ranks[place]
        found = []
        if last is not None and last.rank != rank and last.told:
            found += last.end(leads)
            self._forget(last.rank)
        if place is None or rank is None:
            return found
        spell = self._spell = last if last is not None and last.rank == rank else _SlowPeriod(rank)
        spell.more, spell.causes = more, peers.explain(place)
        spell.windows, spell.steps = spell.windows + 1, spell.steps + len(compared)
        if spell.windows >= LONG_WINDOWS and spell.steps >= LONG_STEPS:
            found += spell.lost(leads) if spell.told else spell.begin(before) + spell.lost(leads)
            spell.told = True
            self._forget(rank)
            step, share = numbers[compared[-1].step], more / step_seconds
            self.slow = SlowRank(rank=rank, step=step, steps=spell.steps, share=share, causes=spell.causes)
        return found

    def _forget(self, rank: int) -> None:
        """Drop the leads of a rank after its losses were reported."""
        self._leads = [lead for lead in self._leads if lead.rank != rank]


def _slowest(peers: Peers, compared: Sequence[Compared]) -> int | None:
    """Return the place of the rank that is slowest in most steps; None: there is no such rank."""
    counts = Counter([one.slowest for one in compared])
    place = max(counts, key=lambda one: (counts[one], -one), default=None)
    if place is None or counts[place] <= len(compared) * max(SLOW_STEPS, 1.5 / len(peers.ranks)):
        return None
    return place


def _work(role: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the coordinates that decide which work a rank does."""
    return tuple(sorted([(name, place) for name, place in role.items() if name in STAGES]))
