"""Garbage collections, counted."""

GENERATIONS = 3


class Pauses:
    """All collections of a fit."""

    def __init__(self) -> None:
        self.collections = [0] * GENERATIONS
        """How many, by generation."""
        self.seconds = 0.0
        self.longest = 0.0

    def add(self, generation: int, seconds: float) -> None:
        """There was one."""
        self.collections[min(generation, GENERATIONS - 1)] += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
