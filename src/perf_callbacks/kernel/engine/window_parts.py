"""The steps of one rank, cut into the windows that ranks exchange."""

from array import array
from collections.abc import Iterator, Mapping
from math import nan

from perf_callbacks.kernel.engine.observer import Observers
from perf_callbacks.kernel.engine.steps import RECOUNTED, Columns, Totals
from perf_callbacks.kernel.engine.windows import Part

MOST_STEPS = 1000
"""Most steps of a window whose parts carry signals."""


class Parts:
    """Adds up the included steps of each window.

    A window that began before its length was known is left out.
    """

    def __init__(
        self, *, step: int, rank: int, world_size: int, data_parallel: int, observers: Observers | None = None
    ) -> None:
        self._length: int | None = None
        self._start = self._seen = step
        self._after = step  # the totals hold the steps after this step
        self._rank = rank
        self._world_size = world_size
        self._data_parallel = data_parallel
        self._totals = Totals()
        self.ambiguous = False
        """True: it is unknown which ranks share samples, so the amounts of the job are unknown."""
        self.asks: Mapping[str, int] = {}
        """Values that this rank proposes to all ranks, sent with its next part."""
        self._observers = observers or Observers()
        self.signals = False
        """True: parts carry signals, also of the steps that are in no row."""
        self._steps: list[Columns] = []  # of the window so far, for the signals

    @property
    def length(self) -> int | None:
        """Optimizer steps per window; None: there are no windows."""
        return self._length

    @length.setter
    def length(self, length: int | None) -> None:
        if length != self._length:
            self._length = length
            self._begin(self._seen)

    def add(self, steps: Columns) -> Iterator[Part]:
        """Add the next steps, at least a single step, and yield the parts that are complete."""
        self._seen = steps.number[-1]
        if self._length is None:
            return
        start = 0
        for stop, number in enumerate(steps.number, 1):
            if number % self._length == 0:
                self._add(steps.cut(start, stop))
                if self._after <= max(self._start, number - self._length):
                    yield self._part(number // self._length - 1, self._length)
                self._begin(number)
                start = stop
        self._add(steps.cut(start))

    def _add(self, steps: Columns) -> None:
        self._totals.add(_belonging(steps))
        if self.signals and steps.number and (self._length or 0) <= MOST_STEPS:
            self._steps.append(steps)

    def _begin(self, after: int) -> None:
        self._totals, self._after, self._steps = Totals(), after, []

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
            samples=None if self.ambiguous else totals.samples,
            tokens=None if self.ambiguous else totals.tokens,
            useful_tokens=None if self.ambiguous else totals.useful_tokens,
            model_flops=totals.effort.model_flops if totals.effort_steps == totals.steps else None,
            hardware_flops=totals.effort.hardware_flops if totals.effort_steps == totals.steps else None,
            asks=dict(self.asks),
            signals=self._signals(window * length + 1, length),
        )

    def _signals(self, first: int, length: int) -> dict[str, "array[float]"]:
        """Make the signals of the window, each as long as the window."""
        if not self.signals or not self._steps:
            return {}
        steps = Columns.joined(self._steps)
        signals = {}
        for name, column in self._observers.window_part(steps).items():
            signals[name] = array("f", [nan]) * length
            for number, seconds in zip(steps.number, column, strict=True):
                if seconds is not None and 0 <= number - first < length:
                    signals[name][number - first] = seconds
        return signals


def _belonging(steps: Columns) -> Columns:
    """Return the steps that count in windows: all steps of rows, and steps excluded as recounted."""
    if not any(steps.excluded):
        return steps
    reasons = zip(steps.excluded, steps.step_seconds, strict=True)
    return steps.only([reason is None or (reason == RECOUNTED and time is not None) for reason, time in reasons])
