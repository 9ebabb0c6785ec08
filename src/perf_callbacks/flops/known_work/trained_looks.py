"""When to look which parameters are trained: a count holds only for the same ones."""

from perf_callbacks.kernel.engine.work_model import LOOK_STEPS

LOOK_SECONDS = 0.25
"""A count is used for about as long as this without a look, and for no more steps than `LOOK_STEPS`…"""

LEAST_STEPS = 5
"""…but no fewer than these…"""

CLOSE_STEPS = 2 * LOOK_STEPS
"""…and each of so many steps after a change: parameters that are trained in turns may change back between two looks."""


class TrainedLooks:
    """Spaces the looks so that they cost little, however long steps are."""

    def __init__(self) -> None:
        self._every = LEAST_STEPS
        self._last = 0, 0.0

    def begin(self, step: int, now: float) -> None:
        """Training begins after that step."""
        self._last = step, now

    def after(self, step: int, changed: int | None) -> int:
        """Return the step after which to look again, if the last look was after `step`.

        `changed` is the last step after which other parameters were found trained; None: there was no change.
        """
        return step + (1 if changed is not None and step < changed + CLOSE_STEPS else self._every)

    def looked(self, step: int, now: float) -> None:
        """Take the time of a look, to find out how long steps are."""
        (before, then), self._last = self._last, (step, now)
        seconds = max(now - then, 1e-9)
        self._every = max(LEAST_STEPS, min(LOOK_STEPS, int((step - before) * LOOK_SECONDS / seconds)))
