"""What is seen to between the steps of a fit."""

from collections.abc import Callable, Mapping, Sequence

from perf_callbacks.core.protocols import Upkeep
from perf_callbacks.core.records import APPLIED, TRIED, Checklist, Gc, Record
from perf_callbacks.core.steps import NEVER, Step


class Keeping:
    """Passes on to an upkeep what it has to know of, and to the journal what it has to say. At first there is none.

    In a step in which nothing is due it costs a comparison with `due`.
    """

    def __init__(self, write: Callable[[Record], object]) -> None:
        self._write = write
        self._upkeep: Upkeep | None = None
        self.due = NEVER
        """The step from whose end on there is something to do."""
        self.proofs: dict[str, str] = {}
        """Items that were tried, each with what came of it so far."""

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

    @property
    def watching(self) -> bool:
        """Whether it wants to see anything."""
        return self._upkeep is not None and self._upkeep.watching

    def see(self, steps: Sequence[Step], pauses: Sequence[Gc]) -> None:
        """Steps are finished."""
        if self._upkeep is not None:
            self._upkeep.see(steps, pauses)
            self._catch_up(self._upkeep)

    @property
    def asks(self) -> Mapping[str, int]:
        """What this rank asks all ranks for."""
        return {} if self._upkeep is None else self._upkeep.asks

    def agree(self, least: Mapping[str, int], step: int) -> None:
        """What holds on all ranks from the end of that step on."""
        if self._upkeep is not None:
            self._upkeep.agree(least, step)
            self._catch_up(self._upkeep)

    def _catch_up(self, upkeep: Upkeep) -> None:
        self.due = upkeep.due
        for row in upkeep.news():
            self._note(row)
            self._write(row)

    def _note(self, row: Checklist) -> None:
        """An item that is applied has more to say than what it buys; one that is not any more says why."""
        if row.status == TRIED:
            self.proofs[row.item] = TRIED
        elif row.item in self.proofs and (row.status != APPLIED or row.saved_seconds is not None):
            self.proofs[row.item] = row.why or row.status
