"""Whether something makes steps shorter: it is done and left in turns, and neighbouring turns are compared.

The step's number alone decides whether the change is on, so that all ranks agree. The order of on and off is swapped in
half of the pairs of turns, so that steady drifts cancel out.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement
from statistics import fmean, median
from typing import NamedTuple

from perf_callbacks.core.records import Gc
from perf_callbacks.core.steps import Step

TURN = 32
"""Steps of a turn."""

SETTLE = 2
"""Steps at the start of a turn that are left out: effects of the turn before may last into them."""

PAIRS = 16

FEWEST = 11
"""Fewest pairs for an outcome: a turn that is full of evaluations tells nothing."""

CUT_OFF = {11: 0, 12: 1, 13: 2, 14: 4, 15: 6, 16: 8}
"""Number of means of two differences beyond each end of the 99.9 % interval, by the number of pairs.

These are the critical values of Wilcoxon's signed rank test, two-sided, at 0.001.
"""


LONGEST = 1.5
"""Largest length of a step, in usual steps of its turn and without collections of this process."""

LEAST = 0.001
"""Smallest saving, as a share of a step, that is worth keeping."""


class Outcome(NamedTuple):
    """Seconds saved per mean step. Negative: steps got longer."""

    saved: float
    low: float
    high: float
    """Upper end of the 99.9 % interval, whose lower end is `low`."""
    left: float
    """Length of a step without the change."""
    pairs: int

    @property
    def better(self) -> bool:
        """Tell if the change is known to save enough to be worth keeping."""
        return self.low > LEAST * self.left


class Trial:
    """Turns from the step after `after` on. With `collecting`, what is tried is when garbage is collected."""

    def __init__(self, after: int, *, collecting: bool = False) -> None:
        self._after = after
        self._collecting = collecting
        self.last = after + 2 * PAIRS * TURN
        """The last step of the last turn."""
        self._turns: list[list[_Seen]] = [[] for _ in range(2 * PAIRS)]
        self._pauses: dict[int, list[Gc]] = {}  # of steps that were not seen yet
        self.over = False
        """Whether all of its steps have been seen."""

    def done_after(self, step: int) -> bool:
        """Whether it is done in the step that follows. Before the first turn and after the last one it is left."""
        turn = (step - self._after) // TURN
        return 0 <= turn < 2 * PAIRS and _done(turn)

    def turns_after(self, step: int) -> int | None:
        """Return the next step at which a turn ends or the first one begins; None: there is none any more."""
        turn = max(0, (step - self._after) // TURN + 1)
        return self._after + turn * TURN if turn <= 2 * PAIRS else None

    def see(self, steps: Iterable[Step], pauses: Iterable[Gc] = ()) -> None:
        """Steps are finished; collections fell in these, or in later ones."""
        for pause in pauses:
            if pause.stage != "aside":
                self._pauses.setdefault(pause.step, []).append(pause)
        for step in steps:
            turn, place = divmod(step.number - self._after - 1, TURN)
            paused = self._pauses.pop(step.number, [])
            if 0 <= turn < 2 * PAIRS and place >= SETTLE and step.excluded is None and step.seconds is not None:
                seen = _seen(sum(step.seconds), paused, done=_done(turn), ends=place == TURN - 1)
                self._turns[turn].append(seen)
            self.over = self.over or step.number >= self.last

    def outcome(self) -> Outcome | None:
        """What comes of the pairs that are whole. None: too few of them.

        Steps are noisy: whoever shares the machine may hold up single ones, which count as `LONGEST`, or whole turns,
        which a middle of differences doesn't follow (Hodges and Lehmann's). So a long pause of another rank counts for
        little too: what is saved where ranks wait for each other may be more. What collections took is known for
        sure, however rare and long they are; it is part of this only where they are what is tried.
        """
        means = [(_done(turn), _Mean.of(seen)) for turn, seen in enumerate(self._turns)]
        pairs = [dict(pair) for pair in zip(means[::2], means[1::2], strict=True)]
        whole = [pair for pair in pairs if all(mean.steps >= TURN // 2 for mean in pair.values())]
        if len(whole) < FEWEST:
            return None
        low, middle, high = _typical([pair[False].rest - pair[True].rest for pair in whole])
        left, done = _Mean.all([pair[False] for pair in whole]), _Mean.all([pair[True] for pair in whole])
        # A full collection looks at what was made in all turns, whichever it falls into.
        of_left = (left.young / left.steps + left.full / (left.steps + done.steps)) if self._collecting else 0.0
        sure = of_left - done.young / done.steps if self._collecting else 0.0
        return Outcome(middle + sure, low + sure, high + sure, left.rest + of_left, len(whole))


FULL = 2
"""The generation that is collected with all others."""


class _Seen(NamedTuple):
    """A step, and how long collections took in it."""

    seconds: float
    young: float
    full: float


def _seen(seconds: float, pauses: Sequence[Gc], *, done: bool, ends: bool) -> _Seen:
    """Of what somebody else collects it is not known whether it would have been any other way round."""
    ours = [one for one in pauses if one.automatic or (done and (ends or one.generation < FULL))]
    full = sum([one.seconds for one in ours if one.automatic and one.generation == FULL])
    young = sum([one.seconds for one in ours]) - full
    return _Seen(seconds, young, full)


class _Mean(NamedTuple):
    """Some steps of one turn, or of several."""

    steps: int
    rest: float
    """Of a mean step, without collections."""
    young: float
    """Of all of them, how long collections held them up; the next too."""
    full: float

    @classmethod
    def of(cls, seen: Sequence[_Seen]) -> "_Mean":
        """On a device's clock a collection may hold up nothing: it counts as far as its step is longer than others."""
        if not seen:
            return cls(0, 0.0, 0.0, 0.0)
        usual = median([one.seconds for one in seen])
        shares = [min(1.0, max(0.0, one.seconds - usual) / ((one.young + one.full) or 1.0)) for one in seen]
        held_up = [(one.young * share, one.full * share) for one, share in zip(seen, shares, strict=True)]
        rest = [min(one.seconds - sum(held), LONGEST * usual) for one, held in zip(seen, held_up, strict=True)]
        young, full = (sum(column) for column in zip(*held_up, strict=True))
        return cls(len(seen), fmean(rest), young, full)

    @classmethod
    def all(cls, turns: Sequence["_Mean"]) -> "_Mean":
        """Of several turns."""
        steps, rest, young, full = zip(*turns, strict=True)
        return cls(sum(steps), fmean(rest), sum(young), sum(full))


def _typical(differences: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of the differences between the ends of its 99.9 % interval."""
    means = sorted([(a + b) / 2 for a, b in combinations_with_replacement(differences, 2)])
    cut = CUT_OFF[len(differences)]
    return means[cut], median(means), means[-1 - cut]


def _done(turn: int) -> bool:
    """Tell if the change is on in a turn. The Thue-Morse sequence keeps periodic effects from coinciding with it."""
    return ((turn // 2).bit_count() + turn) % 2 == 1
