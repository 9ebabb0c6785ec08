"""Choose the steps of a fit whose FLOPs are counted."""

import math
from collections.abc import Collection

from perf_callbacks.flops.known_work.shaped_work import ShapedWork
from perf_callbacks.kernel.engine.steps import NEVER

FREE_COUNTS = 4
"""Number of counts of new batch shapes that are allowed at any time, even after few steps."""

FREE_WAYS = 8
"""Number of further counts for steps that call the model in a new way or train other parameters.

Like `FREE_COUNTS`, these counts are allowed at any time.
"""

STEPS_PER_COUNT = 50
"""After the free counts, one more count is allowed for every 50 steps."""

MOST_PART = 0.05
"""Largest share of a fit's time that counts may take. The first count of a fit is free.

If counts have used up this share, new work is counted later, and so is a recount.
"""

EARLY_SECONDS = 10.0
"""Counts may take at least `MOST_PART` of ten seconds, even if the fit is shorter than ten seconds."""

SHORT_SECONDS = 1.0
"""A free count is allowed whatever its share of the time if the most recent count took at most this many seconds.

A short fit of padded batches would else have no FLOPs, because each of its steps has new shapes.
"""

RECOUNTS = (11, 33, 84, 85, 304)
"""Steps of the fit whose FLOPs are counted again although they are known.

A recount shows whether FLOPs vary between steps with equal batch shapes. The recounted steps are chosen to find extra
work that repeats every 2, 3, 4, 5, 8 or 16 steps.
"""

RECOUNT_EVERY = 1009
"""After the last step in `RECOUNTS`, every 1,009th step is counted again. The number is prime, so that recounts don't
always hit the same step of a repeating schedule."""


class CountSchedule:
    """Chooses the steps of a fit whose FLOPs are counted.

    Args:
        work: Known FLOPs of the fit, and the model calls that were never counted.
    """

    def __init__(self, work: ShapedWork) -> None:
        self._work = work
        self.steps = 0
        """Number of completed steps of the fit."""
        self.counts = 0
        """Number of counts that are charged to the budget. Recounts are free.

        The method `spend_more` charges a useless count a second time.
        """
        self._recounted = 0  # step of the last recount
        self.done = False
        """True if the first count is over."""
        self.elapsed_seconds = math.inf
        """Seconds since the fit began. If this is infinite, counts may take any share of the time."""
        self._spent_seconds = 0.0
        self._last_seconds = 0.0

    def affordable(self, free: int = FREE_COUNTS) -> bool:
        """Return True if the budgets of counts and of time allow another count."""
        early = self.counts < FREE_COUNTS and self._last_seconds <= SHORT_SECONDS
        return (self.counts < free or self.counts * STEPS_PER_COUNT < self.steps) and (early or self._in_time())

    def took(self, seconds: float) -> None:
        """Charge the extra seconds of a counted step to the time budget. The first count of a fit is free."""
        self._last_seconds = max(0.0, seconds)
        self._spent_seconds += self._last_seconds if self.done else 0.0

    def _in_time(self) -> bool:
        """Return True if the time budget allows a count that takes as long as the most recent count."""
        spent = self._spent_seconds + self._last_seconds
        return not self.done or spent <= MOST_PART * max(EARLY_SECONDS, self.elapsed_seconds)

    def spend(self, *, new: bool = False) -> None:
        """Charge the count of the next step to the budget. A recount costs nothing.

        If `new` is True, the shape of the step's batch is new. Then the count is no recount of known work.
        """
        if self.done and self._is_recount_due() and not new:
            self._recounted = self.steps + 1
        else:
            self.counts += 1

    def spend_more(self) -> None:
        """Charge a useless count a second time. After two useless counts, no free count is left."""
        self.counts += FREE_COUNTS // 2 - 1

    def wanted(self, step: int) -> bool:
        """Return True if the next step is to be counted. `step` is the trainer's number of the last completed step."""
        again = self._is_recount_due() and self._in_time()
        return not self.done or again or self.missing(step) == self.steps

    def _is_recount_due(self) -> bool:
        """Return True if the next step is counted again, or if there was no time for the last recount.

        In a job of several ranks there always is time, so all ranks recount the same steps.
        """
        return self.steps + 1 >= self._recount_after(self._recounted)

    def recount(self) -> int:
        """Return the number of the next step that is counted again, if there is time."""
        return self._recount_after(self.steps)

    @staticmethod
    def _recount_after(step: int) -> int:
        following = next((recount for recount in RECOUNTS if recount > step), None)
        return following or (step // RECOUNT_EVERY + 1) * RECOUNT_EVERY

    def missing(self, step: int) -> int:
        """Return the number of completed steps after which a step with uncounted work is expected.

        Work is uncounted if a step calls the model in a new way or trains other parameters. If steps 10 and 15 had the
        same uncounted calls, the schedule expects the calls again in step 20.
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
        """Return after how many completed steps of the fit the next step is counted or outlined.

        A batch of a new shape may be counted earlier.

        Args:
            step: The trainer's number of the last completed step.
            examples: Batches whose shapes wait for a count.
            look_after: Number of completed steps after which the next outline is taken.
            live: True if steps are counted while they run.
        """
        if not self.done:
            return 0
        if self._work.varies:  # FLOPs stay unknown
            return NEVER
        owed = 0 if self.counts < FREE_COUNTS else self.counts * STEPS_PER_COUNT + 1
        again = min(self.recount() - 1, look_after) if live else NEVER
        return min(again, self.missing(step), owed if examples else NEVER)
