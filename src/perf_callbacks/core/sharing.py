"""What an engine tells the other ranks, and hears from them."""

from collections.abc import Callable

from perf_callbacks.core.ledger import Ledger
from perf_callbacks.core.parts import Parts
from perf_callbacks.core.records import Record, Window
from perf_callbacks.core.sources import Ranks


class Sharing:
    """Hands over the parts that are complete, and hands out the windows that came back. Without ranks, nothing."""

    def __init__(self, ranks: Ranks | None, parts: Parts, ledger: Ledger, emit: Callable[[Record], None]) -> None:
        self._ranks = ranks
        self._parts = parts
        self._ledger = ledger
        self._emit = emit
        self.due: int | None = None
        """The step with which the current window is complete."""

    @property
    def latest(self) -> Window | None:
        """What all ranks did in the last window that is known."""
        return self._ranks.latest if self._ranks is not None else None

    def do(self, step: int) -> None:
        """Tell and hear, after that step."""
        if self._ranks is None:
            return
        for part in self._ledger.take_parts():
            self._ranks.offer(part)
        for window in self._ranks.take():
            self._emit(window)
        length = self._parts.length = self._ranks.window
        self.due = None if length is None else (step // length + 1) * length
