"""When to check which parameters are trained: a count holds only for the same parameters."""

from perf_callbacks.kernel.engine.work_model import LOOK_STEPS

LOOK_SECONDS = 0.25
"""Wanted seconds between two checks of the trained parameters: no more than `LOOK_STEPS` steps…"""

LEAST_STEPS = 5
"""…but at least this many steps…"""

CLOSE_STEPS = 2 * LOOK_STEPS
"""…and every step for this long after a change: parameters trained in turns may change back between two checks."""


class TrainedLooks:
    """Spaces the checks so that their cost is small, however long steps are."""

    def __init__(self) -> None:
        self._every = LEAST_STEPS
        self._last = 0, 0.0

    def begin(self, step: int, now: float) -> None:
        """Store the step after which training begins, and the time."""
        self._last = step, now

    def after(self, step: int, changed: int | None) -> int:
        """Return the step after which to check again, if the last check was after `step`.

        `changed` is the last step after which a check found other parameters trained; None: no change was found.
        """
        return step + (1 if changed is not None and step < changed + CLOSE_STEPS else self._every)

    def looked(self, step: int, now: float) -> None:
        """Store the time of a check, and choose the next gap by the time per step."""
        (before, then), self._last = self._last, (step, now)
        seconds = max(now - then, 1e-9)
        self._every = max(LEAST_STEPS, min(LOOK_STEPS, int((step - before) * LOOK_SECONDS / seconds)))
