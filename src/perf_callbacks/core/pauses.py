"""Garbage collections, counted."""

from perf_callbacks.core.marks import Pause

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
