"""Decide when a count has cost enough."""

from collections.abc import Callable

from perf_callbacks.flops.counting.observed import OperationFacts
from perf_callbacks.kernel.engine.marks import Calls, StageTracker
from perf_callbacks.kernel.engine.stages import Stage

CHECK_EVERY = 64  # operations between two checks of the cost

MOST_WITHOUT_PRODUCT = 1000
"""In a row, outside of forward and backward: torch's optimizers issue some ten, or per parameter with
`foreach=False`."""

_MODEL = (Stage.FORWARD, Stage.BACKWARD)


class CountLimit:
    """Ends a count for good, or until the next call of a module: metrics may issue more operations than a model."""

    def __init__(self, tracker: StageTracker, spent: Callable[[int], bool]) -> None:
        self._tracker, self._spent = tracker, spent
        self.ended: tuple[Calls, Stage] | None = None
        """Calls so far and the stage in which the count ended early; None if it goes on."""
        self.left_update: Calls | None = None  # calls so far when work outside of forward and backward was left out
        self._check_at = CHECK_EVERY
        self._without_product = 0

    @property
    def calls(self) -> Calls:
        return self._tracker.calls

    @property
    def complete(self) -> bool:
        """True if the count has ended, or no module was called since: a counter that left was not missed."""
        return self.ended is not None or self.left_update == self._tracker.calls

    def reached(self, sort: OperationFacts, operations: int) -> bool:
        """Return True if an operation must not be counted. `operations` is the number so far."""
        if operations >= self._check_at:
            self._check_at = operations + CHECK_EVERY
            if self._spent(operations):
                self.ended = self._tracker.calls, self._tracker.stage
                return True
        if sort.formula is not None or self._tracker.stage in _MODEL:
            self._without_product = 0
            return False
        self._without_product += 1
        if self._without_product > MOST_WITHOUT_PRODUCT:
            self.left_update = self._tracker.calls
            return True
        return False

    def begin_again(self) -> None:
        self._without_product = 0
