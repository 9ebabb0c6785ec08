"""The parts of windows that the engine offers to the exchange, and the windows and agreements that come back."""

from collections.abc import Callable

from perf_callbacks.kernel.engine.ledger import Ledger
from perf_callbacks.kernel.engine.observer import Observers
from perf_callbacks.kernel.engine.protocols import Ranks
from perf_callbacks.kernel.engine.window_parts import Parts
from perf_callbacks.kernel.records.fit_records import Record, Window


class Sharing:
    """Hands over the parts that are complete, and hands out the windows that came back.

    Without ranks to talk to there is nothing to do; where there are no others, all agree at once.
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
        """The step with which the current window is complete."""

    @property
    def latest(self) -> Window | None:
        """The last window that is known of all ranks."""
        return self._ranks.latest if self._ranks is not None else None

    def do(self, step: int) -> None:
        """Tell and hear, after that step."""
        asks = self._observers.asks
        if self._ranks is None:
            if self._alone:
                self._observers.agreed(asks, step)
            return
        self._parts.asks = asks
        self._parts.signals = self._ranks.signals and self._observers.have_signals
        for part in self._ledger.take_parts():
            self._ranks.offer(part)
        for window in self._ranks.take():
            self._emit(window)
        length = self._parts.length = self._ranks.window
        self.due = None if length is None else (step // length + 1) * length
        if length is not None:
            self._hear()

    def _hear(self) -> None:
        """Pass on what ranks agree on, and from when on."""
        latest = self.latest
        if latest is None or latest is self._heard:
            return
        self._heard = latest
        for step in sorted({*latest.holds.values()}):
            names = [name for name in latest.asks if latest.holds.get(name) == step]
            self._observers.agreed({name: latest.asks[name] for name in names}, step)
