"""Offer this rank's part of each window to the other ranks, and receive the sums over all ranks."""

from array import array
from collections.abc import Callable
from math import nan
from typing import Protocol

from perf_callbacks.kernel.engine.observer import Observers
from perf_callbacks.kernel.engine.steps import RECOUNTED, Columns, Totals
from perf_callbacks.kernel.engine.windows import JobSettings, Part
from perf_callbacks.kernel.records.fit_records import Record, Run, Window

MOST_STEPS = 1000
"""Maximum length of a window whose parts carry signals. Parts of longer windows carry no signals."""


class Ranks(Protocol):
    """This rank's connection to the other ranks of the job. Only `agree` and `close` wait for other ranks."""

    @property
    def job_settings(self) -> JobSettings | None:
        """Settings that rank 0 has chosen for all ranks of this fit. None: the settings are not known yet."""

    def agree(self) -> JobSettings | None:
        """Wait a moment for the settings of rank 0. Return the settings, or None if they have not arrived."""
        ...

    @property
    def window(self) -> int | None:
        """Number of optimizer steps per window.

        None means that ranks exchange no windows, or that the number is not known yet.
        """

    @property
    def latest(self) -> Window | None:
        """The newest window that this rank has received, with the sums over all ranks. None before the first window."""

    @property
    def signals(self) -> bool:
        """True if it is known that parts carry signals."""
        ...

    def offer(self, part: Part) -> None:
        """Offer this rank's part of a window to the other ranks."""

    def take(self) -> list[Window]:
        """Return the windows that this rank must write to its journal. Each window is returned only once."""
        ...

    def close(self) -> None:
        """End the exchange with the other ranks."""


class WindowSharing:
    """Adds up the steps of each window, offers the sums to the other ranks, and writes the windows of all ranks.

    A window is not offered to the other ranks if its first step ended before the window length was known. Without
    `ranks`, nothing is exchanged. In a job with one rank, the rank uses its own proposals immediately.
    """

    def __init__(
        self,
        run: Run,
        emit: Callable[[Record], None],
        observers: Observers,
        ranks: Ranks | None = None,
        *,
        data_parallel: int,
        ambiguous: Callable[[int], object] = lambda _: False,
    ) -> None:
        self._run, self._emit, self._observers, self._ranks = run, emit, observers, ranks
        self._data_parallel = data_parallel
        self._ambiguous = ambiguous
        """True: it is unknown which ranks share samples, so the amounts of the job are unknown."""
        self._announced: Window | None = None
        self.due: int | None = None
        """Number of the step that completes the current window. None: there are no windows."""
        self.length: int | None = None
        """Number of optimizer steps per window. None: there are no windows."""
        self.signals = False
        """True if parts carry signals. Signals also cover the excluded steps of a window."""
        self.complete: list[Part] = []
        """Parts of complete windows that were not offered to the other ranks yet."""
        self._start = self._seen = run.step
        self._begin(run.step)

    @property
    def latest(self) -> Window | None:
        """The newest window that this rank has received, with the sums over all ranks."""
        return self._ranks.latest if self._ranks is not None else None

    def exchange(self, step: int) -> None:
        """Offer parts of complete windows to the other ranks, and write received windows.

        `step` is the number of the most recent finished step.
        """
        if self._ranks is None:
            if self._run.world_size == 1:
                self._observers.agreed(self._observers.asks, step)
            return
        complete, self.complete = self.complete, []
        for part in complete:
            self._ranks.offer(part)
        for window in self._ranks.take():
            self._emit(window)
        self.use(self._ranks.window)
        self.due = None if self.length is None else (step // self.length + 1) * self.length
        if self.length is not None:
            self._announce()

    def _announce(self) -> None:
        """Tell the observers which values all ranks use, and from which step on."""
        latest = self.latest
        if latest is None or latest is self._announced:
            return
        self._announced = latest
        for step in sorted({*latest.holds.values()}):
            names = [name for name in latest.asks if latest.holds.get(name) == step]
            self._observers.agreed({name: latest.asks[name] for name in names}, step)

    def use(self, length: int | None) -> None:
        """Use windows of `length` steps from now on. If the length changes, a new window begins."""
        if length != self.length:
            self.length = length
            self._begin(self._seen)

    def add(self, steps: Columns) -> None:
        """Add one or more finished steps, in the order of the steps."""
        self._seen = steps.number[-1]
        if self.length is None:
            return
        if self._ranks is not None:  # looked up here: observers join after the first `exchange`
            self.signals = self._ranks.signals and bool(self._observers.overriding["window_part"])
        start = 0
        for stop, number in enumerate(steps.number, 1):
            if number % self.length == 0:
                self._add(steps.cut(start, stop))
                if self._after <= max(self._start, number - self.length):
                    self.complete.append(self._part(number // self.length - 1, self.length))
                self._begin(number)
                start = stop
        self._add(steps.cut(start))

    def _add(self, steps: Columns) -> None:
        self._totals.add(_belonging(steps))
        if self.signals and steps.number and (self.length or 0) <= MOST_STEPS:
            self._steps.append(steps)

    def _begin(self, after: int) -> None:
        self._totals, self._after = Totals(), after  # the totals hold the steps after step `after`
        self._steps: list[Columns] = []  # of the window so far, for the signals

    def _part(self, window: int, length: int) -> Part:
        totals, ambiguous = self._totals, self._ambiguous((window + 1) * length)
        return Part(
            window=window,
            length=length,
            rank=self._run.rank,
            world_size=self._run.world_size,
            data_parallel=self._data_parallel,
            steps=totals.steps,
            seconds=totals.step_seconds,
            samples=None if ambiguous else totals.samples,
            tokens=None if ambiguous else totals.tokens,
            useful_tokens=None if ambiguous else totals.useful_tokens,
            model_flops=totals.effort.model_flops if totals.effort_steps == totals.steps else None,
            hardware_flops=totals.effort.hardware_flops if totals.effort_steps == totals.steps else None,
            asks=self._observers.asks,
            resources=self._observers.resources(),
            signals=self._signals(window * length + 1, length),
        )

    def _signals(self, first: int, length: int) -> dict[str, "array[float]"]:
        """Return the signals of the window, each under its name.

        A signal has one value per step of the window, in seconds.
        """
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
    """Return the steps that count in windows.

    Windows count the included steps, and the steps that are excluded for the reason `RECOUNTED`.
    """
    if not any(steps.excluded):
        return steps
    reasons = zip(steps.excluded, steps.step_seconds, strict=True)
    return steps.only([reason is None or (reason == RECOUNTED and time is not None) for reason, time in reasons])
