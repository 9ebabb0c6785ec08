"""Decide whether a change makes steps shorter: turn the change on and off, and compare neighbouring turns.

A turn is a series of steps in which the change stays on, or stays off. The number of a step alone decides whether the
change is on, so that all ranks agree. Two neighbouring turns form a pair. Half of the pairs begin with the change on,
the other half with the change off, so that steady drifts cancel out.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement
from statistics import fmean, median
from typing import NamedTuple

from perf_callbacks.kernel.engine.steps import Step
from perf_callbacks.kernel.process.collector import FULL
from perf_callbacks.kernel.records.fit_records import Gc

TURN = 32
"""Number of steps in a turn."""

SETTLE = 2
"""Number of unmeasured steps at the start of a turn. The previous turn may still affect these steps."""

PAIRS = 16

FEWEST = 11
"""Minimum number of complete pairs for which `outcome` gives a result. A pair is complete if at least `TURN // 2` steps
of each turn were measured."""

CUT_OFF = {11: 0, 12: 1, 13: 2, 14: 4, 15: 6, 16: 8}
"""Critical values of Wilcoxon's signed rank test, two-sided, at the level 0.001. The key is the number of pairs.

The 99.9 % interval is computed from the differences of the pairs. First, the mean of every two differences is computed,
and all means are sorted. The critical value is the number of means to remove at each end of the sorted list.
"""


LONGEST = 1.5
"""Limit of a step's time, relative to the median step of its turn. Longer times are cut to the limit.

The limit applies to the time of the step without garbage collections in this process.
"""

LEAST = 0.001
"""Minimum saving that is worth keeping, as a share of the length of a step."""


class Outcome(NamedTuple):
    """Seconds that the change saves per step. A negative number means that steps got longer."""

    saved: float
    low: float
    high: float
    """Upper end of the 99.9 % interval. The lower end is `low`."""
    left: float
    """Average seconds of a step without the change."""
    pairs: int

    @property
    def better(self) -> bool:
        """Return True if the change very likely saves enough to be worth keeping."""
        return self.low > LEAST * self.left


class Trial:
    """Turns a change on and off from the step after `after` on.

    With `collecting=True`, the time of garbage collections also counts.
    """

    def __init__(self, after: int, *, collecting: bool = False) -> None:
        self._after = after
        self._collecting = collecting
        self.last = after + 2 * PAIRS * TURN
        """Number of the trial's final step."""
        self._turns: list[list[tuple[float, list[Gc]]]] = [[] for _ in range(2 * PAIRS)]
        self._pauses: defaultdict[int, list[Gc]] = defaultdict(list)  # of steps that were not seen yet
        self.over = False
        """True if all steps of the trial were seen."""

    def done_after(self, step: int) -> bool:
        """Return True if the change is on in the step after `step`. Before and after the trial, the change is off."""
        turn = (step - self._after) // TURN
        return 0 <= turn < 2 * PAIRS and _done(turn)

    def turns_after(self, step: int) -> int | None:
        """Return the first step after `step` at whose end a turn begins or ends.

        Return None after the trial's final step.
        """
        turn = max(0, (step - self._after) // TURN + 1)
        return self._after + turn * TURN if turn <= 2 * PAIRS else None

    def see(self, steps: Iterable[Step], pauses: Iterable[Gc] = ()) -> None:
        """Add finished steps and garbage collections.

        A collection may belong to one of these steps, or to a step that a later call adds.
        """
        for pause in pauses:
            # The program's own calls of `gc.collect` are left out: they come whether the change is on or off.
            if pause.stage != "aside" and (pause.automatic or pause.ours is not None):
                self._pauses[pause.step].append(pause)
        for step in steps:
            turn, place = divmod(step.number - self._after - 1, TURN)
            paused = self._pauses.pop(step.number, [])
            if 0 <= turn < 2 * PAIRS and place >= SETTLE and step.excluded is None and step.seconds is not None:
                self._turns[turn].append((sum(step.seconds), paused))
            self.over = self.over or step.number >= self.last

    def outcome(self) -> Outcome | None:
        """Compare the turns of each complete pair. Return None if there are too few complete pairs.

        Other processes on the machine may delay single steps. `LONGEST` limits the effect of a delayed step. The result
        is a median of differences: the estimator of Hodges and Lehmann. A few delayed turns hardly change the median. A
        long pause of another rank hardly changes the result. If ranks wait for each other, the true saving may be
        larger than the result. A median of 16 differences can't show a pause that is long and rare. If the change moves
        garbage collections, the result is the median plus the mean saving of collection time.
        """
        means = [(_done(turn), _mean(seen)) for turn, seen in enumerate(self._turns)]
        pairs = [dict(pair) for pair in zip(means[::2], means[1::2], strict=True)]
        whole = [pair for pair in pairs if all(mean.steps >= TURN // 2 for mean in pair.values())]
        if len(whole) < FEWEST:
            return None
        low, middle, high = _typical([pair[False].seconds - pair[True].seconds for pair in whole])
        paused, still = (fmean([pair[done].paused for pair in whole]) * self._collecting for done in (False, True))
        left, sure = fmean([pair[False].seconds for pair in whole]) + paused, paused - still
        return Outcome(middle + sure, low + sure, high + sure, left, len(whole))


class _Mean(NamedTuple):
    """The mean step of a turn: number of steps, seconds without garbage collections, seconds of collections."""

    steps: int
    seconds: float
    paused: float


def _mean(seen: Sequence[tuple[float, Sequence[Gc]]]) -> _Mean:
    """Return the mean step of a turn.

    The time of garbage collections in a step counts only up to a limit: the step's time minus the median step's time.
    If a device's clock times the steps, some collections in the host make no step longer.
    """
    if not seen:
        return _Mean(0, 0.0, 0.0)
    usual = median([seconds for seconds, _ in seen])
    rest, owed = [], []
    for seconds, pauses in seen:
        paused = sum([pause.seconds for pause in pauses])
        share = min(1.0, max(0.0, seconds - usual) / (paused or 1.0))
        rest.append(min(seconds - paused * share, LONGEST * usual))
        owed.append(sum([_owed(pause) for pause in pauses]) * share)
    return _Mean(len(seen), fmean(rest), fmean(owed))


def _owed(pause: Gc) -> float:
    """Return how many seconds of a garbage collection are charged to the turn in which the collection ran.

    An automatic full collection counts half, because it scans objects of turns with and without the change.
    """
    return pause.seconds / 2 if pause.automatic and pause.generation == FULL else pause.seconds


def _typical(differences: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of the differences with its 99.9 % interval: lower end, median, upper end."""
    means = sorted([(a + b) / 2 for a, b in combinations_with_replacement(differences, 2)])
    cut = CUT_OFF[len(differences)]
    return means[cut], median(means), means[-1 - cut]


def _done(turn: int) -> bool:
    """Return True if the trial applies the change in this turn, which is numbered from 0.

    The turns follow the Thue-Morse sequence, so that no periodic effect coincides with the change.
    """
    return ((turn // 2).bit_count() + turn) % 2 == 1
