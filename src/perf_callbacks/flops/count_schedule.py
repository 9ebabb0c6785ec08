"""Choose the steps of a fit whose FLOPs are counted."""

import math
from collections.abc import Collection

from perf_callbacks.flops.by_shape.shaped_work import ShapedWork
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.records.shares import MOST_PART

FREE_COUNTS = 4  # counts of new batch shapes that are allowed at any time

FREE_WAYS = 8  # further ones for steps that call the model in a new way or train other parameters

STEPS_PER_COUNT = 50  # after the free counts, one more per 50 steps

EARLY_SECONDS = 10.0  # a shorter fit's budget is that of ten seconds

SHORT_SECONDS = 1.0
"""Seconds of the last count up to which a free one may take any share: each step of short padded fits has new
shapes."""

RECOUNTS = (11, 33, 84, 85, 304)
"""Counted again, to see if equal shapes vary. They find extra work every 2, 3, 4, 5, 8 or 16 steps."""

RECOUNT_EVERY = 1009
"""After the last of `RECOUNTS`. Prime, so that recounts don't always hit the same step of a repeating schedule."""


class CountSchedule:
    """Chooses the steps of a fit whose FLOPs are counted."""

    def __init__(self, work: ShapedWork) -> None:
        self._work = work
        self.steps = 0  # completed steps of the fit
        self.counts = 0  # counts charged to the budget; recounts are free
        self._recounted = 0  # step of the last recount
        self.done = False  # True if the first count is over
        self.elapsed_seconds = math.inf
        """Since the fit began. If infinite, counts may take any share of the time."""
        self._spent_seconds = 0.0
        self._last_seconds = 0.0

    def affordable(self, free: int = FREE_COUNTS) -> bool:
        early = self.counts < FREE_COUNTS and self._last_seconds <= SHORT_SECONDS
        return (self.counts < free or self.counts * STEPS_PER_COUNT < self.steps) and (early or self._in_time())

    def took(self, seconds: float) -> None:
        """Charge the extra seconds of a counted step. The first count of a fit is free."""
        self._last_seconds = max(0.0, seconds)
        self._spent_seconds += self._last_seconds if self.done else 0.0

    def _in_time(self) -> bool:
        """The next count is expected to take as long as the last one."""
        spent = self._spent_seconds + self._last_seconds
        return not self.done or spent <= MOST_PART * max(EARLY_SECONDS, self.elapsed_seconds)

    def spend(self, *, new: bool = False) -> None:
        """Charge the next step's count, unless it recounts; `new` means a new batch shape, which is no recount."""
        if self.done and self._is_recount_due() and not new:
            self._recounted = self.steps + 1
        else:
            self.counts += 1

    def spend_more(self) -> None:
        """Charge a useless count a second time: two of them leave no free count."""
        self.counts += FREE_COUNTS // 2 - 1

    def wanted(self, step: int) -> bool:
        """`step` is the trainer's last completed one."""
        again = self._is_recount_due() and self._in_time()
        return not self.done or again or self.missing(step) == self.steps

    def _is_recount_due(self) -> bool:
        """A recount without time stays due. Several ranks always have time, so all recount the same steps."""
        return self.steps + 1 >= self._recount_after(self._recounted)

    def recount(self) -> int:
        return self._recount_after(self.steps)

    @staticmethod
    def _recount_after(step: int) -> int:
        following = next((recount for recount in RECOUNTS if recount > step), None)
        return following or (step // RECOUNT_EVERY + 1) * RECOUNT_EVERY

    def missing(self, step: int) -> int:
        """Return after how many completed steps uncounted work is expected: that of 10 and 15 again in 20."""
        work = self._work
        if not self.done or not (work.has_no_count or work.uncounted_calls):
            return NEVER
        if not self.affordable(FREE_COUNTS + FREE_WAYS if work.rating is not None else FREE_COUNTS):
            return max(self.steps + 1, self.counts * STEPS_PER_COUNT + 1)
        if work.has_no_count:
            return self.steps
        again = [
            last + (last - first) * ((step - last) // (last - first) + 1)
            for first, last in work.uncounted_calls.values()
            if first
        ]
        return min(again) - 1 - step + self.steps if again else NEVER

    def next(self, step: int, *, examples: Collection[object], look_after: int, live: bool) -> int:
        """`step` is the trainer's last completed one; `examples` wait for a count; `live`: counted as they run."""
        if not self.done:
            return 0
        if self._work.varies:  # FLOPs stay unknown
            return NEVER
        owed = 0 if self.counts < FREE_COUNTS else self.counts * STEPS_PER_COUNT + 1
        again = min(self.recount() - 1, look_after) if live else NEVER
        return min(again, self.missing(step), owed if examples else NEVER)
