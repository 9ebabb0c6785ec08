"""Decide if a change makes steps shorter: turn it on and off, and compare neighbouring turns.

The step's number alone decides whether the change is on, so that all ranks agree. The order of on and off is swapped in
half of the pairs of turns, so that steady drifts cancel out.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement
from statistics import fmean, median
from typing import NamedTuple

from perf_callbacks.kernel.engine.steps import Step
from perf_callbacks.kernel.records.fit_records import Gc

TURN = 32
"""Steps of a turn."""

SETTLE = 2
"""Steps at the start of a turn that are left out: effects of the turn before may last into these steps."""

PAIRS = 16

FEWEST = 11
"""Fewest complete pairs for an outcome. A turn in which most steps are excluded makes its pair incomplete."""

CUT_OFF = {11: 0, 12: 1, 13: 2, 14: 4, 15: 6, 16: 8}
"""Critical values of Wilcoxon's signed rank test, two-sided, at 0.001, by the number of pairs. For the 99.9 % interval,
sort the means of all pairs of differences, and cut this number of means off at each end.
"""


LONGEST = 1.5
"""A longer step counts as this many median steps of its turn. Collections of this process are not part of the step
here."""

LEAST = 0.001
"""Smallest saving, as a share of a step, that is worth keeping."""

FULL = 2
"""The oldest generation: its collection is a full collection."""


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
        """Return True if the change is known to save enough to be worth keeping."""
        return self.low > LEAST * self.left


class Trial:
    """Turns from the step after `after` on. With `collecting`, the time of garbage collections also counts."""

    def __init__(self, after: int, *, collecting: bool = False) -> None:
        self._after = after
        self._collecting = collecting
        self.last = after + 2 * PAIRS * TURN
        """The last step of the last turn."""
        self._turns: list[list[tuple[float, list[Gc]]]] = [[] for _ in range(2 * PAIRS)]
        self._pauses: defaultdict[int, list[Gc]] = defaultdict(list)  # of steps that were not seen yet
        self.over = False
        """All steps of the trial have been seen."""

    def done_after(self, step: int) -> bool:
        """Return True if the change is on in the step after `step`; False before and after the trial."""
        turn = (step - self._after) // TURN
        return 0 <= turn < 2 * PAIRS and _done(turn)

    def turns_after(self, step: int) -> int | None:
        """Return the next step at which a turn begins or ends; None after the last turn."""
        turn = max(0, (step - self._after) // TURN + 1)
        return self._after + turn * TURN if turn <= 2 * PAIRS else None

    def see(self, steps: Iterable[Step], pauses: Iterable[Gc] = ()) -> None:
        """Add finished steps, and collections that fell in these or in later steps."""
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
        """Compare the complete pairs of turns. None: there are too few pairs.

        Other processes on the machine may delay single steps: `LONGEST` limits how much such a step counts. Other
        processes may also delay whole turns: a median of differences (Hodges and Lehmann's) ignores such turns. For the
        same reasons, a long pause of another rank counts for little. So if ranks wait for each other, the true saving
        may be larger. If collections are on trial, their time is added to the median as measured, because a median of
        16 differences can't show a pause that is long and rare.
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
    """The mean step of a turn: number of steps, seconds without collections, and seconds of collections."""

    steps: int
    seconds: float
    paused: float


def _mean(seen: Sequence[tuple[float, Sequence[Gc]]]) -> _Mean:
    """Return the mean step of a turn.

    A collection counts at most as much as its step exceeds the median step: on a device's clock, a collection may delay
    nothing.
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
    """Return the seconds of a collection that its turn is charged with.

    An automatic full collection counts half, because it scans objects of turns with and without the change.
    """
    return pause.seconds / 2 if pause.automatic and pause.generation == FULL else pause.seconds


def _typical(differences: Sequence[float]) -> tuple[float, float, float]:
    """Return the 99.9 % interval of the differences and their median: lower end, median, upper end."""
    means = sorted([(a + b) / 2 for a, b in combinations_with_replacement(differences, 2)])
    cut = CUT_OFF[len(differences)]
    return means[cut], median(means), means[-1 - cut]


def _done(turn: int) -> bool:
    """Return True if the change is on in a turn.

    Turns follow the Thue-Morse sequence, so that no periodic effect coincides with the change.
    """
    return ((turn // 2).bit_count() + turn) % 2 == 1
