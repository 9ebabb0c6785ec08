"""Finished steps, kept one by one for the journal and added up for rows and summary."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from perf_callbacks.core.records import Steps
from perf_callbacks.core.steps import Shown, Step, Totals, columns, plus
from perf_callbacks.core.window_parts import Parts
from perf_callbacks.core.windows import Part

MOST_UNTOLD = 64
"""Steps that may be told of their tokens later."""


class Ledger:
    """The books of one fit. It never holds more than a block of steps."""

    def __init__(self, shown: Shown, parts: Parts) -> None:
        self._shown = shown
        self._parts = parts
        self._over: list[Part] = []
        self.block: list[Step] = []
        """Steps that were not handed out yet."""
        self._added = 0
        self._early = 0  # steps from the first of the block on that are in the journal, also some that follow it
        self._row, self._included = Totals(), Totals()
        self._steps = self._lost = 0
        self._samples: int | None = 0
        self._tokens = self._untold_steps = 0
        self._untold: dict[int, bool] = {}  # the first steps without tokens, and whether they are included
        self._last = self._row_after = -1  # numbers of steps
        self.excluded: Counter[str] = Counter()
        """How many steps are in no row, by reason."""
        self.left_out: Counter[str] = Counter()
        """Excluded steps since the last row, by reason."""
        self._told: Counter[str] = Counter()

    def enter(self, steps: Iterable[Step]) -> None:
        """Steps are finished."""
        self.block += steps

    def take_block(self) -> Steps | None:
        """The steps since the last block, as they stand in the journal."""
        self._add()
        block, self.block, self._added = self.block, [], 0
        new, self._early = block[self._early :], max(0, self._early - len(block))
        return columns(new, self._shown) if new else None

    def early_block(self, following: Sequence[Step]) -> Steps | None:
        """As `take_block`, with some steps that were not entered yet. Nothing is taken or added up by it."""
        new = [*self.block, *following][self._early :]
        self._early += len(new)
        return columns(new, self._shown) if new else None

    def take_parts(self) -> list[Part]:
        """What this rank did in the windows that are over since the last time."""
        self._add()
        over, self._over = self._over, []
        return over

    def take_row(self) -> Totals:
        """The included steps since the last row, added up."""
        self._add()
        self._row.settle()
        row, self._row, self._row_after = self._row, Totals(), self._last
        self.left_out = self.excluded - self._told
        self._told = self.excluded.copy()
        self._included.merge(row)
        return row

    def included(self) -> Totals:
        """All included steps, added up."""
        self._add()
        totals = Totals()
        totals.merge(self._included)
        totals.merge(self._row)
        totals.settle()
        return totals

    def all(self) -> tuple[int, int | None, int | None, int]:
        """Steps, samples and tokens of all steps, and how many of them have no time."""
        self._add()
        return self._steps, self._samples, None if self._untold_steps else self._tokens, self._lost

    def tell_tokens(self, tokens: Mapping[int, int]) -> None:
        """Steps that were entered before it was known which tensor holds token ids have turned out to hold as many."""
        self._add()
        for number, included in self._untold.items():
            if number in tokens:
                self._tokens += tokens[number]
                self._untold_steps -= 1
                if included:
                    (self._row if number > self._row_after else self._included).tell_tokens(tokens[number])
        self.block = [
            step._replace(tokens=tokens.get(step.number)) if step.tokens is None else step for step in self.block
        ]
        self._untold = {number: included for number, included in self._untold.items() if number not in tokens}

    def _add(self) -> None:
        """Add up what came since the last time: together, since that is cheaper than one by one."""
        new = self.block[self._added :]
        self._added = len(self.block)
        self._steps += len(new)
        self._samples = plus(self._samples, *[step.samples for step in new])
        self._add_tokens(new)
        self._lost += sum([step.seconds is None for step in new])
        self._row.add([step for step in new if step.excluded is None])
        self.excluded.update([step.excluded for step in new if step.excluded is not None])
        self._over += self._parts.add(new)

    def _add_tokens(self, new: list[Step]) -> None:
        untold = [step for step in new if step.tokens is None]
        self._tokens += sum([step.tokens for step in new if step.tokens is not None])
        self._untold_steps += len(untold)
        for step in untold[: MOST_UNTOLD - len(self._untold)]:
            self._untold[step.number] = step.excluded is None
        self._last = new[-1].number if new else self._last
