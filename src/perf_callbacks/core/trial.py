"""Whether something makes steps shorter: it is done and left in turns, and neighbouring turns are compared.

Which way a step goes depends on its number alone, so that all ranks go the same way. A pair of turns differs from the
next one in which of the two comes first: what grows or shrinks evenly meanwhile cancels out.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement
from statistics import fmean, median
from typing import NamedTuple

from perf_callbacks.core.steps import Step

TURN = 32
"""Steps of a turn."""

SETTLE = 2
"""Steps at the start of a turn that don't count: what was done last may still go on in them."""

PAIRS = 16

FEWEST = 11
"""Pairs without which nothing is said: a turn that evaluations take up tells nothing."""

CUT_OFF = {11: 0, 12: 1, 13: 2, 14: 4, 15: 6, 16: 8}
"""By the number of pairs: how many of the means of two differences lie beyond each end of the 99.9 % interval.

These are the critical values of Wilcoxon's signed rank test, two-sided, at 0.001.
"""


LONGEST = 1.5
"""No step counts for more than so many usual ones of its turn, collections of this process aside."""

LEAST = 0.001
"""The share of a step that has to be saved: nobody would miss less."""


class Outcome(NamedTuple):
    """What was saved, in seconds of a mean step. Negative: it took longer."""

    saved: float
    low: float
    high: float
    """`low` to `high` is the 99.9 % interval."""
    left: float
    """How long a step is where it is left."""
    pairs: int

    @property
    def better(self) -> bool:
        """Whether it is known to save something worth it."""
        return self.low > LEAST * self.left


class Trial:
    """Turns from the step after `after` on."""

    def __init__(self, after: int) -> None:
        self._after = after
        self.last = after + 2 * PAIRS * TURN
        """The last step of the last turn."""
        self._turns: list[list[tuple[float, float]]] = [[] for _ in range(2 * PAIRS)]
        self.over = False
        """Whether all of its steps have been seen."""

    def done_after(self, step: int) -> bool:
        """Whether it is done in the step that follows. Before the first turn and after the last one it is left."""
        turn = (step - self._after) // TURN
        return 0 <= turn < 2 * PAIRS and _done(turn)

    def turns_after(self, step: int) -> int | None:
        """The next step with which a turn ends, or the first one begins; None: there is none any more."""
        turn = max(0, (step - self._after) // TURN + 1)
        return self._after + turn * TURN if turn <= 2 * PAIRS else None

    def see(self, steps: Iterable[Step]) -> None:
        """Steps are finished."""
        for step in steps:
            turn, place = divmod(step.number - self._after - 1, TURN)
            if 0 <= turn < 2 * PAIRS and place >= SETTLE and step.excluded is None and step.seconds is not None:
                self._turns[turn].append((sum(step.seconds), step.pause_seconds))
            self.over = self.over or step.number >= self.last

    def outcome(self) -> Outcome | None:
        """What comes of the pairs that are whole. None: too few of them.

        How long collections of this process held up steps is known for sure, however rare and long they are. All the
        rest of a step is noisy: whoever shares the machine may hold up single steps, which count as `LONGEST`, or
        whole turns, which a middle of differences doesn't follow (Hodges and Lehmann's). So a long pause of another
        rank counts for little too: what is saved where ranks wait for each other may be more.
        """
        pairs = []
        for first in range(0, 2 * PAIRS, 2):
            turns = {_done(turn): self._turns[turn] for turn in (first, first + 1)}
            if all(len(steps) >= TURN // 2 for steps in turns.values()):
                pairs.append((_shares(turns[False]), _shares(turns[True])))
        if len(pairs) < FEWEST:
            return None
        low, middle, high = _typical([left.rest - done.rest for left, done in pairs])
        sure = fmean([left.paused - done.paused for left, done in pairs])
        left = fmean([left.rest + left.paused for left, _ in pairs])
        return Outcome(middle + sure, low + sure, high + sure, left, len(pairs))


class _Shares(NamedTuple):
    """A mean step of a turn."""

    rest: float
    paused: float


def _shares(steps: Sequence[tuple[float, float]]) -> _Shares:
    """On a device's clock a collection may hold up nothing: it counts as far as its step is longer than others."""
    usual = median([seconds for seconds, _ in steps])
    paused = [min(pause, max(0.0, seconds - usual)) for seconds, pause in steps]
    rest = [min(seconds - pause, LONGEST * usual) for (seconds, _), pause in zip(steps, paused, strict=True)]
    return _Shares(fmean(rest), fmean(paused))


def _typical(differences: Sequence[float]) -> tuple[float, float, float]:
    """The middle of them, between the ends of its 99.9 % interval."""
    means = sorted([(a + b) / 2 for a, b in combinations_with_replacement(differences, 2)])
    cut = CUT_OFF[len(differences)]
    return means[cut], median(means), means[-1 - cut]


def _done(turn: int) -> bool:
    """First it is left and then done, then done and left, and so on."""
    return turn % 4 in {1, 2}
