"""Trial of a checklist item: turn the item on and off early in a fit, and keep it if it makes steps shorter."""

from collections.abc import Mapping, Sequence

from typing_extensions import override

from perf_callbacks.kernel.engine.steps import NEVER, Step
from perf_callbacks.kernel.fit.item import SKIPPED, ActiveItem
from perf_callbacks.kernel.fit.trial import LEAST, PAIRS, TURN, Outcome, Trial
from perf_callbacks.kernel.records.fit_records import APPLIED, Checklist, Gc

SLOT = 2 * PAIRS * TURN + 256
"""Number of steps from the start of one item's trial to the start of the next item's trial. After each trial, 256 steps
are left free, so that all ranks learn the verdict before the next trial."""


class Proving(ActiveItem):
    """A checklist item on trial. If there are several ranks, the item is kept only if it saves time on each rank."""

    def __init__(self, item: ActiveItem, after: int) -> None:
        super().__init__()
        self.slug = item.slug
        self._item = item
        self._trial = Trial(after, collecting=item.collects)
        self._turn = self._trial.turns_after(after - 1)
        self._name = asked(item.slug)
        self._finds: bool | None = None
        self._verdict: tuple[bool, int] | None = None
        self._over = False
        item.hold()

    @property
    @override
    def due(self) -> int:
        decided = NEVER if self._verdict is None else self._verdict[1]
        return min(self._item.due, NEVER if self._turn is None else self._turn, decided)

    @override
    def step_ended(self, step: int) -> None:
        if step >= self._item.due:
            self._item.step_ended(step)
        if not self._over and not self._item.turns:  # the item has given up by itself, and said why
            self._end()
            self._finds = False  # the other ranks receive this with `asks`
        if self._turn is not None and step >= self._turn:
            self._item.turn(step, done=self._trial.done_after(step))
            self._turn = self._trial.turns_after(step)
        if self._verdict is not None and step >= self._verdict[1]:
            self._decide(step, keep=self._verdict[0])

    @override
    def span_began(self, kind: str, step: int) -> None:
        self._item.span_began(kind, step)

    @override
    def span_ended(self) -> None:
        self._item.span_ended()

    @property
    @override
    def watching(self) -> bool:
        return not self._over

    @override
    def steps_measured(self, steps: Sequence[Step], pauses: Sequence[Gc]) -> None:
        if self._over or self._finds is not None:
            return
        self._trial.see(steps, pauses)
        if self._trial.over:
            outcome = self._trial.outcome()
            self._finds = outcome is not None and outcome.better

    @property
    @override
    def asks(self) -> Mapping[str, int]:
        """Proposals of the item to all ranks: the name of each value, and the value.

        Once the trial is over, the proposals include this rank's verdict on the item.
        """
        return {**self._item.asks, **({} if self._finds is None else {self._name: int(self._finds)})}

    @override
    def agreed(self, least: Mapping[str, int], step: int) -> None:
        self._item.agreed(least, step)
        if self._name in least and self._verdict is None and not self._over:
            self._verdict = bool(least[self._name]), step

    def news(self) -> list[Checklist]:
        """Return the new checklist rows of the item and of its trial. Each row is returned only once."""
        return [*self._item.news(), *super().news()]

    @override
    def closed(self) -> None:
        self._end()
        self._item.closed()

    def _decide(self, step: int, *, keep: bool) -> None:
        self._end()
        outcome = self._trial.outcome()
        if keep:
            self._item.keep(step)
        else:
            self._item.leave(step)
        if keep and not self._item.turns:  # the item has given up and said why
            return
        self._say(
            APPLIED if keep else SKIPPED,
            _told(outcome, keep=keep),
            None if outcome is None else (outcome.low, outcome.saved, outcome.high),
        )

    def _end(self) -> None:
        self._over, self._turn, self._verdict = True, None, None


def asked(slug: str) -> str:
    """Return the name under which a rank votes on an item: 1 keeps the item, 0 drops the item."""
    return f"keep {slug}"


def plan(after: int) -> str:
    """Return a text with the plan of a trial that begins after step `after`.

    >>> plan(2)
    'on and off in turns of 32 steps until step 1,026, to measure what it saves'
    """
    return f"on and off in turns of {TURN} steps until step {Trial(after).last:,}, to measure what it saves"


def _told(outcome: Outcome | None, *, keep: bool) -> str:
    if outcome is None:
        return f"it was not kept: too few of its {PAIRS} pairs of turns were undisturbed to measure what it saves"
    saved, low, high, left = (seconds * 1e3 for seconds in outcome[:4])
    interval = f"99.9 % interval {low:.3g} to {high:.3g} ms, {outcome.pairs} pairs of turns"
    if keep:
        return f"it saves {saved:.3g} of {left:.3g} ms a step ({saved / left:.1%}; {interval})"
    if outcome.better:
        return (
            f"it was not kept, because other ranks don't gain: here it saves {saved:.3g} of {left:.3g} ms ({interval})"
        )
    if outcome.low > 0:
        return f"it was not kept: it saved less than {LEAST:.1%} of a step of {left:.3g} ms ({interval})"
    if outcome.high < 0:
        return f"it was not kept: it made a step of {left:.3g} ms longer by {-saved:.3g} ms ({interval})"
    return f"it was not kept: its saving in a step of {left:.3g} ms is within the noise ({interval})"
