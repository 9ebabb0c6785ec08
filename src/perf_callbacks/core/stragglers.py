"""Stragglers: the ranks that others waited for, why, and the seconds that the job lost by them.

After a collective all ranks go on together. The time that a rank takes from there until it waits again is measured on
its own clock, and can be compared with that of other ranks although their clocks can't. The slowest rank sets the pace:
the job loses what this rank took beyond the others.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from perf_callbacks.core.even_work import evened
from perf_callbacks.core.peers import CAUSES, DEVICE, GC, LOCAL, STEAL, STEP, Compared, Peers, Signals, known, median
from perf_callbacks.core.records import Straggler

STAGES = frozenset({"pipeline", "pipe", "pp"})
"""Coordinates of a rank that decide which layers it computes. Ranks are compared if these are equal."""

LEAST_SHARE, LEAST_SECONDS = 0.25, 0.003
"""Part of a median step, and seconds, that a step must lose before a rank is named."""

DEVIATIONS = 8 * 1.4826
"""Median deviations by which it must lose more than other steps. 1.4826 of them are a standard deviation."""

MEMORY = 200
"""Steps whose losses are remembered to tell an unusual one."""

EXACT = frozenset({GC, STEAL})
"""Causes that are measured by themselves. Waiting for data holds some of their time too, so they come first."""

SHORTAGE = 2.0
"""Times that the other causes must exceed a usual step's wait for a CPU: where CPUs are short, all times vary."""

KINDS = frozenset({STEAL, DEVICE})
"""Signals that tell kinds of local times apart: up to the last gradient, of stages on a device, or of stages. Only
times of one kind are compared, as one holds the backward and another doesn't."""

SLICE = 256
"""Ranks whose roles are looked at in one slice of the work."""

SLOW_SHARE, SLOW_STEPS = 0.05, 0.6
"""A rank is slow in a window if it takes this part of a step longer than a usual rank, and is the slowest one in this
part of the steps. It is a slow rank from the second window in a row on."""

LONG_STEPS = 30
"""Steps of these windows before which a rank is not slow for long, however short windows are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowRank:
    """A rank that was slow in at least two windows in a row."""

    rank: int
    step: int
    """Last step of the newest of them."""
    steps: int
    """Steps of these windows."""
    share: float
    """Part of a step that it takes longer than a usual rank, in the newest one."""
    causes: Mapping[str, float]
    """Part of this difference that each cause explains, the largest first."""


@dataclass(slots=True)
class _Suspect:
    """A rank that was slow in the last window."""

    rank: int
    steps: int = 0
    untold: list[Straggler] = field(default_factory=list)
    """Losses that are told if it is slow in the next window too."""


class Stragglers:
    """Finds stragglers, window by window, and adds up what they cost. It doesn't grow with the number of steps."""

    def __init__(self) -> None:
        self._groups: dict[object, _Group] = {}
        self.lost: dict[tuple[int, str], float] = {}
        """Seconds that the job lost, by rank and cause."""
        self.times: Counter[tuple[int, str]] = Counter()
        """Number of steps in which it lost them."""
        self.steps = 0
        """Steps that were compared."""
        self.seconds = self.uneven_seconds = 0.0
        """Duration of these steps, and how much shorter they would be if each rank were as fast as a usual one."""
        self._several = False

    def window(
        self,
        numbers: Sequence[int],
        ranks: Mapping[int, Signals],
        roles: Mapping[int, Mapping[str, int]] | None = None,
        rest: Callable[[], object] = lambda: None,
    ) -> list[Straggler]:
        """Compare the ranks of one window, and return what was found.

        Args:
            numbers: Numbers of its steps.
            ranks: Signals of each rank that is heard of. A rank without as many steps is left out.
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
        durations = known(one.get(STEP, one[LOCAL]))  # those of any rank: they all wait for each other
        uneven = [0.0] * steps
        found: list[Straggler] = []
        for like, group in work.items():
            group.sort()
            rest()
            peers = Peers(group, evened([ranks[rank] for rank in group], rest))
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
        """The slow ranks of the newest window, at most one among ranks that are compared with each other."""
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
        """Duration of the steps over the one that they would have if no rank were slow. None: there is one rank."""
        rest = self.seconds - self.uneven_seconds
        return self.seconds / rest if rest > 0 and self._several else None


class _Group:
    """Ranks that do the same work, over the windows."""

    def __init__(self) -> None:
        self._noise: dict[str, deque[float]] = {}
        self._suspect: _Suspect | None = None
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
        """Pass over a window in which these ranks weren't compared: who was slow before it is slow no more."""
        self._suspect = self.slow = None

    def _events(
        self, numbers: Sequence[int], peers: Peers, compared: Sequence[Compared], step_seconds: float
    ) -> list[Straggler]:
        """Name rank and cause of each step that lost unusually much."""
        limits = {}
        for cause in compared[0].gains if compared else ():
            noise = self._noise.setdefault(cause, deque(maxlen=MEMORY))
            noise.extend([min(one.late, one.gains[cause]) for one in compared])
            middle = median(noise)
            spread = median([abs(seconds - middle) for seconds in noise])
            limits[cause] = max(middle + DEVIATIONS * spread, LEAST_SHARE * step_seconds, LEAST_SECONDS)
            if cause not in EXACT:
                limits[cause] += SHORTAGE * peers.usual(STEAL)
        found = []
        for one in compared:
            left = one.gain
            for cause in sorted(one.gains, key=lambda cause: (cause not in EXACT, -one.gains[cause])):
                lost = min(one.gains[cause], left)
                if min(lost, one.late) > limits[cause]:
                    left -= lost
                    rank = peers.ranks[one.slowest]
                    found.append(Straggler(step=numbers[one.step], rank=rank, cause=cause, seconds_lost=lost))
        return found

    def _persistent(
        self, numbers: Sequence[int], peers: Peers, compared: Sequence[Compared], step_seconds: float, named: set[int]
    ) -> list[Straggler]:
        """Tell if one rank is slow for long: by how much, and by which causes."""
        before, self._suspect, self.slow = self._suspect, None, None
        slowest = Counter([one.slowest for one in compared])
        place = max(slowest, key=lambda one: (slowest[one], -one), default=None)
        if place is None or slowest[place] <= len(compared) * max(SLOW_STEPS, 1.5 / len(peers.ranks)):
            return []
        late = median([one.late if one.slowest == place else 0.0 for one in compared])
        if late <= SLOW_SHARE * step_seconds:
            return []
        rank, last_step = peers.ranks[place], numbers[compared[-1].step]
        suspect = before if before is not None and before.rank == rank else _Suspect(rank)
        mine = [one for one in compared if one.slowest == place and numbers[one.step] not in named]
        lost, causes = sum([one.ahead for one in mine]), peers.explain(place)
        suspect.untold += [
            Straggler(step=last_step, rank=rank, cause=cause, seconds_lost=lost * part, steps=len(mine))
            for cause, part in causes.items()
        ]
        self._suspect, known = suspect, suspect.steps > 0
        suspect.steps += len(compared)
        if not known or suspect.steps < LONG_STEPS:
            return []
        share = late / step_seconds
        self.slow = SlowRank(rank=rank, step=last_step, steps=suspect.steps, share=share, causes=causes)
        told, suspect.untold = suspect.untold, []
        return told


def _work(role: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the coordinates that decide which work a rank does."""
    return tuple(sorted([(name, place) for name, place in role.items() if name in STAGES]))
