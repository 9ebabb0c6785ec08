"""Decide when a count has cost enough."""

from collections.abc import Callable

from perf_callbacks.flops.counting.observed import Sort
from perf_callbacks.kernel.engine.marks import Calls, StageTracker
from perf_callbacks.kernel.engine.stages import Stage

CHECK_EVERY = 64
"""The limit asks once in so many operations whether the count has cost enough."""

MOST_WITHOUT_PRODUCT = 1000
"""Largest number of operations in a row outside of forward and backward that are watched although none is a product.

An optimizer of torch issues some ten operations for all parameters, or for each parameter with `foreach=False`.
"""

_MODEL = (Stage.FORWARD, Stage.BACKWARD)


class CountLimit:
    """Ends a count for good, or until the next call of a module.

    An optimizer, a clipping or a metric that works row by row may issue more operations than the model, each of them
    shorter than counting it takes.

    Args:
        tracker: Tracks the stage of the step.
        spent: Function that returns True once the count has cost enough. The argument is the number of operations.
    """

    def __init__(self, tracker: StageTracker, spent: Callable[[int], bool]) -> None:
        self._tracker, self._spent = tracker, spent
        self.ended: tuple[Calls, Stage] | None = None
        """Calls so far and the stage in which the count ended early, or None if the count goes on."""
        self.left_update: Calls | None = None
        """Calls so far when a part of the work outside of forward and backward was left out, or None."""
        self._check_at = CHECK_EVERY
        self._without_product = 0

    @property
    def calls(self) -> Calls:
        return self._tracker.calls

    @property
    def complete(self) -> bool:
        """True if a counter that left was not missed: the count has ended, or no module was called since."""
        return self.ended is not None or self.left_update == self._tracker.calls

    def reached(self, sort: Sort, operations: int) -> bool:
        """Return True if an operation must not be counted. `operations` is the number of all operations so far."""
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
        """Watch operations again, because a module is called."""
        self._without_product = 0
