"""The writer of steps that wait for the journal while no step ends."""

from collections.abc import Callable

from perf_callbacks.kernel.engine.engine import Engine
from perf_callbacks.kernel.records.journal_file import Journal


class LateWriter:
    """Writes to the journal while the training thread ends no step. The watchdog ticks for it."""

    def __init__(self, engine: Engine, journal: Journal, clock: Callable[[], float]) -> None:
        self.engine = engine
        self._journal = journal
        self._clock = clock
        self.ended = False

    def tick(self, now: float) -> bool:  # noqa: ARG002 what counts is the recorder's clock
        """Write the steps that have waited for long. Return False once the fit has ended."""
        if not self.ended:
            self.engine.write_late(self._clock())
            self._journal.flush()
        return not self.ended
