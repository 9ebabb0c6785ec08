"""One rank's steps, cut into the windows that ranks exchange."""

from collections.abc import Iterator, Sequence

from perf_callbacks.core.steps import Step, Totals
from perf_callbacks.core.windows import Part


class Parts:
    """Adds up the included steps of a window until it is over."""

    def __init__(self, *, rank: int, world_size: int, data_parallel: int) -> None:
        self.length: int | None = None
        """Optimizer steps per window; None: there are none."""
        self._rank = rank
        self._world_size = world_size
        self._data_parallel = data_parallel
        self._totals = Totals()

    def add(self, steps: Sequence[Step]) -> Iterator[Part]:
        """Steps that follow those before; what is complete with them."""
        if self.length is None:
            return
        start = 0
        for stop, step in enumerate(steps, 1):
            if step.number % self.length == 0:
                self._totals.add([one for one in steps[start:stop] if one.excluded is None])
                yield self._part(step.number // self.length - 1, self.length)
                self._totals, start = Totals(), stop
        self._totals.add([one for one in steps[start:] if one.excluded is None])

    def _part(self, window: int, length: int) -> Part:
        totals = self._totals
        return Part(
            window=window,
            length=length,
            rank=self._rank,
            world_size=self._world_size,
            data_parallel=self._data_parallel,
            steps=totals.steps,
            seconds=totals.step_seconds,
            samples=totals.samples,
            tokens=totals.tokens,
            useful_tokens=totals.useful_tokens,
        )
