"""Garbage collections, counted."""

from typing import Any

from perf_callbacks.core.marks import Pause
from perf_callbacks.core.records import Gc

GENERATIONS = 3


class Pauses:
    """All collections of a fit."""

    def __init__(self) -> None:
        self.collections = [0] * GENERATIONS
        """How many, by generation."""
        self.seconds = 0.0
        self.longest = 0.0

    def add(self, pause: Pause) -> None:
        """There was one."""
        self.collections[min(pause.generation, GENERATIONS - 1)] += 1
        self.seconds += pause.seconds
        self.longest = max(self.longest, pause.seconds)

    def summary(self, *, timed: bool) -> dict[str, Any]:
        """The fields of a summary; None where collections were not timed."""
        known = tuple(self.collections), self.seconds, self.longest
        return dict(zip(("gc_collections", "gc_seconds", "gc_longest"), known if timed else [None] * 3, strict=True))


def collection(pause: Pause, stage: str, step: int, began: float) -> Gc:
    """One, as it stands in the journal of a fit that began then."""
    return Gc(
        step=step,
        stage=stage,
        generation=pause.generation,
        start=pause.start - began,
        seconds=pause.seconds,
        collected=pause.collected,
        automatic=pause.automatic,
    )
