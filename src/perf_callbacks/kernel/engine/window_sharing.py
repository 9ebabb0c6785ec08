"""The parts of windows that the engine offers to the exchange, and the windows and agreements that come back."""

from collections.abc import Callable

from perf_callbacks.kernel.engine.ledger import Ledger
from perf_callbacks.kernel.engine.observer import Observers
from perf_callbacks.kernel.engine.protocols import Ranks
from perf_callbacks.kernel.engine.window_parts import Parts
from perf_callbacks.kernel.records.fit_records import Record, Window


class Sharing:
    """Offers complete parts to the exchange, and emits the windows that come back.

    Without `ranks` nothing is exchanged; a rank that is `alone` agrees with itself at once.
    """

    def __init__(
        self,
        ranks: Ranks | None,
        parts: Parts,
        ledger: Ledger,
        emit: Callable[[Record], None],
        observers: Observers,
        *,
        alone: bool = True,
    ) -> None:
        self._ranks = ranks
        self._observers = observers
        self._alone = alone
        self._heard: Window | None = None
        self._parts = parts
        self._ledger = ledger
        self._emit = emit
        self.due: int | None = None
        """The step that completes the current window."""

    @property
    def latest(self) -> Window | None:
        """Last window of all ranks that this rank knows."""
        return self._ranks.latest if self._ranks is not None else None

    def do(self, step: int) -> None:
        """Offer parts and take windows, after step `step`."""
        asks = self._observers.asks
        if self._ranks is None:
            if self._alone:
                self._observers.agreed(asks, step)
            return
        self._parts.asks = asks
        self._parts.signals = self._ranks.signals and bool(self._observers.overriding["window_part"])
        for part in self._ledger.take_parts():
            self._ranks.offer(part)
        for window in self._ranks.take():
            self._emit(window)
        length = self._parts.length = self._ranks.window
        self.due = None if length is None else (step // length + 1) * length
        if length is not None:
            self._hear()

    def _hear(self) -> None:
        """Announce the values that ranks agreed on, and the steps from which the values hold."""
        latest = self.latest
        if latest is None or latest is self._heard:
            return
        self._heard = latest
        for step in sorted({*latest.holds.values()}):
            names = [name for name in latest.asks if latest.holds.get(name) == step]
            self._observers.agreed({name: latest.asks[name] for name in names}, step)
