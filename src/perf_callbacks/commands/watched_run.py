"""The run that `perf-callbacks watch` shows. Now and then, it searches for a newer run."""

from collections.abc import Callable
from pathlib import Path

from perf_callbacks.kernel.clock import monotonic
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.report.recorded_run import RecordedRun
from perf_callbacks.report.run_reader import RunReader

SEARCH_SECONDS = 2.0
"""Between two searches for runs."""

SEARCH_SHARE, WAITING_SHARE = 0.01, 0.1
"""Largest share of the time for searches; `WAITING_SHARE` while there is no run to show."""


class WatchedRun:
    """Reads one run in or below a directory: without an id, the newest."""

    def __init__(self, top: Path, reader: RunReader, wanted: str = "", clock: Callable[[], float] = monotonic) -> None:
        self._top, self._reader, self._wanted, self._clock = top, reader, wanted, clock
        self._runs: list[RecordedRun] = []
        self._shown: RecordedRun | None = None
        self._next_search = float("-inf")

    @property
    def count(self) -> int:
        return len(self._runs)

    def look(self) -> RecordedRun | None:
        """Read from its files again; None: there is no run."""
        began, shown = self._clock(), self._shown
        self._reader.refresh_locks()
        if began >= self._next_search:
            self._shown = self._search()
            ended = self._clock()
            share = WAITING_SHARE if self._shown is None else SEARCH_SHARE
            self._next_search = ended + max(SEARCH_SECONDS, (ended - began) / share)
        elif shown is not None:
            self._shown = self._reader.again(shown)
            if self._shown is None:
                self._next_search = float("-inf")
        return self._shown

    def choose(self, places: int) -> None:
        """Move in the list, to newer runs if negative. After the newest is chosen, it stays the newest."""
        if self._shown is None or not self._runs:
            return
        names = [run.lead.run.run_id for run in self._runs]
        place = max(0, min(len(names) - 1, names.index(self._shown.lead.run.run_id) + places))
        self._wanted = names[place] if place else ""
        self._next_search = float("-inf")

    def _search(self) -> RecordedRun | None:
        try:
            self._runs = self._reader.nearest(self._top)
        except ConfigError:
            self._runs = []
        run = next((other for other in self._runs if other.lead.run.run_id.startswith(self._wanted)), None)
        try:
            return self._reader.whole(run) if run is not None and self._top.is_dir() else run
        except OSError:  # the directory was just removed
            return None
