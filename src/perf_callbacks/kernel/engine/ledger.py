"""Finished steps one by one for the journal, and their sums for metrics and summary."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from perf_callbacks.kernel.engine.steps import Columns, KnownParts, Totals, record
from perf_callbacks.kernel.engine.window_sharing import WindowSharing
from perf_callbacks.kernel.records.fit_records import Steps

MOST_UNTOLD = 64
"""Steps that wait at most for the tensor of token ids to be known, and with it their token counts."""


class Ledger:
    """Finished steps of one fit: the latest one by one, and the sums over all."""

    def __init__(self, shown: KnownParts, windows: WindowSharing) -> None:
        self._shown = shown
        self._windows = windows
        self.kept = 0
        """Steps that `take_block` has not returned yet."""
        self._block: list[Columns] = []
        self._added = 0  # parts of the block that are in the sums
        self._early = 0  # leading steps of the block that are in the journal; may exceed the block
        self._row, self._included = Totals(), Totals()
        self._all = Totals()  # amounts of all steps, without seconds
        self._lost = 0
        self._untold: dict[int, bool] = {}  # the first steps without tokens, and whether they are included
        self._last = self._row_after = -1  # numbers of steps
        self.excluded: Counter[str] = Counter()
        self.excluded_seconds: defaultdict[str, float] = defaultdict(float)
        self.left_out: Counter[str] = Counter()
        """As `excluded`, for the most recent row of metrics."""
        self._told: Counter[str] = Counter()

    def enter(self, steps: Columns) -> None:
        self._block.append(steps)
        self.kept += len(steps.number)

    def take_block(self) -> Steps | None:
        self.add_up()
        early, self._early = self._early, max(0, self._early - self.kept)
        block, self._block, self._added, self.kept = self._block, [], 0, 0
        return self._record(block, early)

    def early_block(self, following: Columns | None) -> Steps | None:
        """Return what the journal lacks, with the newest `following` steps. `take_block` then leaves it out."""
        block = self._block if following is None else [*self._block, following]
        early, self._early = self._early, max(self._early, sum([len(steps.number) for steps in block]))
        return self._record(block, early)

    def _record(self, block: list[Columns], early: int) -> Steps | None:
        if not block:
            return None
        steps = Columns.joined(block)
        new = steps.cut(early) if early else steps
        return record(new, self._shown) if new.number else None

    def take_row(self) -> Totals:
        self._row.settle()
        row, self._row, self._row_after = self._row, Totals(), self._last
        self.left_out = self.excluded - self._told
        self._told = self.excluded.copy()
        self._included.merge(row)
        return row

    def included(self, *, interim: bool = False) -> Totals:
        """Other threads must pass `interim=True`: the device is not queried, and useful tokens may be None."""
        totals = Totals()
        totals.merge(self._included)
        totals.merge(self._row)
        if not interim:
            totals.settle()
        elif not isinstance(totals.useful_tokens, int):
            totals.useful_tokens = None
        return totals

    @property
    def all(self) -> tuple[int, int | None, int | None, int]:
        """All steps, their samples, their tokens, and the steps whose times were lost."""
        return self._all.steps, self._all.samples, self._all.tokens, self._lost

    def tell_tokens(self, tokens: Mapping[int, int]) -> None:
        """Add the tokens of steps, by number, that were entered before the tensor of token ids was known."""
        for number, included in self._untold.items():
            if number in tokens:
                self._all.tell_tokens(tokens[number])
                if included:
                    (self._row if number > self._row_after else self._included).tell_tokens(tokens[number])
        self._block = [steps._replace(tokens=[*map(tokens.get, steps.number, steps.tokens)]) for steps in self._block]
        self._untold = {number: included for number, included in self._untold.items() if number not in tokens}

    def add_up(self) -> None:
        """Add up the steps since the last call, which all sums leave out until then. Many at once are faster."""
        if self._added == len(self._block):
            return
        new = Columns.joined(self._block[self._added :])
        self._added = len(self._block)
        self._all.add_amounts(new)
        self._last = new.number[-1]
        if None in new.tokens:
            untold = [place for place, tokens in enumerate(new.tokens) if tokens is None]
            for place in untold[: MOST_UNTOLD - len(self._untold)]:
                self._untold[new.number[place]] = new.excluded[place] is None
        if any(new.excluded):
            self._lost += new.step_seconds.count(None)
            self.excluded.update(filter(None, new.excluded))
            for reason, seconds in zip(new.excluded, new.step_seconds, strict=True):
                if reason is not None and seconds is not None:
                    self.excluded_seconds[reason] += seconds
        self._row.add(new.included)
        self._windows.add(new)


def reasons(excluded: Mapping[str, int]) -> str:
    """Say how many steps each reason excluded, the most frequent first.

    >>> reasons({"first": 1, "evaluation": 4})
    '4 evaluation, 1 first'
    """
    return ", ".join([f"{steps:,} {reason}" for reason, steps in sorted(excluded.items(), key=lambda item: -item[1])])
