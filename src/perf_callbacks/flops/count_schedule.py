"""Schedule of FLOP counts: which steps of a fit to count, and how many."""

import math
from collections.abc import Collection

from perf_callbacks.flops.known_work.shaped_work import ShapedWork
from perf_callbacks.kernel.engine.steps import NEVER

FREE_COUNTS = 4
"""Number of counts of new shapes that are allowed, however few steps have run."""

FREE_WAYS = 8
"""Additional free counts for steps with new calls of the model or newly trained parameters."""

STEPS_PER_COUNT = 50
"""Steps per count, after the free counts."""

MOST_PART = 0.05
"""Largest share of a fit's time that counts may take after the first count. If no time is left, a count waits, and a
recount is skipped."""

EARLY_SECONDS = 10.0
"""In a fit shorter than this, counts may take the same time as in a fit of this length."""

RECOUNTS = (11, 33, 84, 85, 304)
"""Steps of the fit whose known work is counted again, to find work that varies with something other than shapes. If
extra work comes every 2, 3, 4, 5, 8 or 16 steps, some of these steps have the extra work, and some don't."""

RECOUNT_EVERY = 1009
"""After `RECOUNTS`, every 1,009th step is counted again. A prime number shares no period with the training."""


class CountSchedule:
    """Chooses the steps of a fit whose FLOPs are counted.

    Args:
        work: Known FLOPs, and the calls of the model that were never counted.
    """

    def __init__(self, work: ShapedWork) -> None:
        self._work = work
        self.steps = 0
        """Number of completed steps of the fit."""
        self.counts = 0
        """Number of counts charged to the budget. Recounts are free; a useless count may be charged twice."""
        self.done = False
        """True: the first count is over."""
        self.elapsed_seconds = math.inf
        """Seconds since the fit began. Infinite: counts may take any part of the time."""
        self._spent_seconds = 0.0
        self._last_seconds = 0.0

    def affordable(self, free: int = FREE_COUNTS) -> bool:
        """Return True if the budgets of counts and of time allow another count."""
        return (self.counts < free or self.counts * STEPS_PER_COUNT < self.steps) and self._in_time()

    def took(self, seconds: float) -> None:
        """Add the extra seconds of a counted step to the spent time. Each fit needs the first count, which is free."""
        self._last_seconds = max(0.0, seconds)
        self._spent_seconds += self._last_seconds if self.done else 0.0

    def _in_time(self) -> bool:
        """Return True if there is time for another count that takes as long as the last."""
        spent = self._spent_seconds + self._last_seconds
        return not self.done or spent <= MOST_PART * max(EARLY_SECONDS, self.elapsed_seconds)

    def spend(self) -> None:
        """Charge the count of the next step to the budget. A recount costs nothing."""
        self.counts += not self.done or self.steps + 1 != self.recount()

    def spend_more(self) -> None:
        """Charge a useless count a second time. Two useless counts use up the free counts, and counting pauses."""
        self.counts += FREE_COUNTS // 2 - 1

    def wanted(self, step: int) -> bool:
        """Return True if the next step is to be counted. `step` is the trainer's number of the last step."""
        again = self.steps + 1 == self.recount() and self._in_time()
        return not self.done or again or self.missing(step) == self.steps

    def recount(self) -> int:
        """Return the next step of the fit to recount. All ranks recount the same steps, by number."""
        following = next((step for step in RECOUNTS if step > self.steps), None)
        return following or (self.steps // RECOUNT_EVERY + 1) * RECOUNT_EVERY

    def missing(self, step: int) -> int:
        """Return the number of steps after which a step with new calls or newly trained parameters is counted.

        If two steps had such calls, the schedule expects the same calls again after the same number of steps.
        """
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
        """Return the number of steps after which a count or an `Outline` is due, if no new shape comes first.

        Args:
            step: The trainer's number of the last step.
            examples: Batches of shapes that wait for a count.
            look_after: Number of steps after which the next outline is taken.
            live: True: steps are counted while they run.
        """
        if not self.done:
            return 0
        if self._work.varies:  # FLOPs stay unknown
            return NEVER
        owed = 0 if self.counts < FREE_COUNTS else self.counts * STEPS_PER_COUNT + 1
        again = min(self.recount() - 1, look_after) if live else NEVER
        return min(again, self.missing(step), owed if examples else NEVER)
