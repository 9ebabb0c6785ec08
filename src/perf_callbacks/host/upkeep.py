"""What is seen to between the steps of a fit."""

import sys
from collections.abc import Callable

from perf_callbacks.core.records import Record
from perf_callbacks.core.sources import Upkeep

NEVER = sys.maxsize
"""A step that does not come."""


class Keeping:
    """Passes on to an upkeep what it has to know of, and to the journal what it has to say. At first there is none.

    In a step in which nothing is due it costs a comparison with `due`.
    """

    def __init__(self, write: Callable[[Record], object]) -> None:
        self._write = write
        self._upkeep: Upkeep | None = None
        self.due = NEVER
        """The step from whose end on there is something to do."""

    def take(self, upkeep: Upkeep) -> None:
        """From now on, this one."""
        self._upkeep = upkeep
        self._catch_up(upkeep)

    def end_step(self, step: int) -> None:
        """A step that is due is about to end."""
        if self._upkeep is not None:
            self._upkeep.end_step(step)
            self._catch_up(self._upkeep)

    def begin_span(self, kind: str, step: int) -> None:
        """Time has begun that belongs to no step."""
        if self._upkeep is not None:
            self._upkeep.begin_span(kind, step)
            self._catch_up(self._upkeep)

    def end_span(self) -> None:
        """It is about to end."""
        if self._upkeep is not None:
            self._upkeep.end_span()
            self._catch_up(self._upkeep)

    def _catch_up(self, upkeep: Upkeep) -> None:
        self.due = upkeep.due
        for record in upkeep.news():
            self._write(record)
