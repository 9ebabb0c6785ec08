"""When to look which parameters are trained: a count holds only for the same ones."""

from perf_callbacks.flops.known_work.shaped_work import ShapedWork

LOOK_STEPS = 50
"""A count is used for no more steps than this without a look…"""

LOOK_SECONDS = 0.25
"""…and for about as long as this, where that is fewer steps…"""

LEAST_STEPS = 5
"""…but no fewer than these…"""

CLOSE_STEPS = 2 * LOOK_STEPS
"""…and each of so many steps after a change: parameters that are trained in turns may change back between two looks."""


class TrainedLooks:
    """Looks so often that it costs little, however long steps are."""

    def __init__(self, work: ShapedWork) -> None:
        self._work = work
        self._every = LEAST_STEPS
        self._last = 0, 0.0

    def begin(self, step: int, now: float) -> None:
        """Training begins after that step."""
        self._last = step, now

    def after(self, step: int) -> int:
        """Return the step after which to look again, if it was looked after this one."""
        changed = self._work.changed
        return step + (1 if changed is not None and step < changed + CLOSE_STEPS else self._every)

    def look(self, step: int, now: float) -> bool:
        """Look, and find out how long steps are. True: parameters were frozen or unfrozen in the meantime."""
        self._work.look(step)
        (before, then), self._last = self._last, (step, now)
        seconds = max(now - then, 1e-9)
        self._every = max(LEAST_STEPS, min(LOOK_STEPS, int((step - before) * LOOK_SECONDS / seconds)))
        return self._work.unsure
