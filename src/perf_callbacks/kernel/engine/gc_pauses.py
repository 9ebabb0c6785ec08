"""Garbage collections, counted."""

from perf_callbacks.kernel.engine.marks import Pause
from perf_callbacks.kernel.records.fit_records import STARTUP, Gc
from perf_callbacks.kernel.records.summary_parts import GcSummary

GENERATIONS = 3


class Pauses:
    """Sums over the collections of a fit. The checklist's first full collection has a sum of its own."""

    def __init__(self) -> None:
        self._collections = [0] * GENERATIONS
        self._seconds = self._longest = self._scheduled = self._startup = 0.0

    def add(self, pause: Pause) -> None:
        """Count a collection. A collection that the checklist runs at startup is counted as startup cost only."""
        if pause.ours == STARTUP:
            self._startup += pause.seconds
            return
        self._collections[min(pause.generation, GENERATIONS - 1)] += 1
        self._seconds += pause.seconds
        self._scheduled += pause.seconds if pause.ours else 0.0
        self._longest = max(self._longest, pause.seconds)

    def summary(self) -> GcSummary:
        """Return the collections so far."""
        return GcSummary(
            collections=tuple(self._collections),
            seconds=self._seconds,
            longest=self._longest,
            scheduled_seconds=self._scheduled,
            startup_seconds=self._startup,
        )


def collection(pause: Pause, stage: str, step: int, began: float) -> Gc:
    """Make the journal's record of a collection. `began` is the time at which the fit began."""
    return Gc(
        step=step,
        stage=stage,
        generation=pause.generation,
        start=pause.start - began,
        seconds=pause.seconds,
        collected=pause.collected,
        automatic=pause.automatic,
        ours=pause.ours,
    )
