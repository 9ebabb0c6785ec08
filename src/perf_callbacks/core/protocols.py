"""Whom a fit deals with besides its door: an accelerator's clock, the other ranks, what is seen to between steps."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from perf_callbacks.core.marks import Mark
from perf_callbacks.core.records import Checklist, Gc, Window
from perf_callbacks.core.steps import Step
from perf_callbacks.core.windows import Part


class DeviceTimeline(Protocol):
    """The same marks on an accelerator's clock. Times come late, in order, and sometimes never."""

    def mark(self, mark: Mark) -> None:
        """What is queued from here on comes after this mark."""

    def ready(self) -> list[tuple[float, ...] | None]:
        """Stage seconds of the steps that finished since the last call; None for a lost one."""
        ...


class Ranks(Protocol):
    """The other ranks of a job, as far as they are heard of. Nothing here waits."""

    @property
    def window(self) -> int | None:
        """Optimizer steps after which ranks tell each other what they did; None where they don't, or not yet."""

    @property
    def latest(self) -> Window | None:
        """What all of them did in the last window that is known; None before the first."""

    def offer(self, part: Part) -> None:
        """Tell the others what this rank did in a window."""

    def take(self) -> list[Window]:
        """The windows that are to be written down here and were not yet."""
        ...


class Agreeing(Protocol):
    """Who goes by what steps took, and does nothing that concerns other ranks unless all of them agree."""

    @property
    def watching(self) -> bool:
        """Whether it wants to see anything, for now."""
        ...

    def see(self, steps: Sequence[Step], pauses: Sequence[Gc]) -> None:
        """Steps are finished, as they were measured: some time after their end. Collections are told of before."""

    @property
    def asks(self) -> Mapping[str, int]:
        """What this rank asks all ranks for, by name."""
        ...

    def agree(self, least: Mapping[str, int], step: int) -> None:
        """From the end of that step on this holds on all ranks: the least that any of them asks for."""


class Upkeep(Agreeing, Protocol):
    """What is seen to between steps, for as long as a fit lasts. It fails by itself, and takes nobody along."""

    @property
    def due(self) -> int:
        """The step, by the trainer's count, from whose end on there is something to do."""
        ...

    def end_step(self, step: int) -> None:
        """A step is about to end, in which something is due, or in which a span was."""

    def begin_span(self, kind: str, step: int) -> None:
        """Evaluation, checkpointing or the like has begun after that step."""

    def end_span(self) -> None:
        """It is about to end."""

    def news(self) -> list[Checklist]:
        """What there is to say since the last call."""
        ...

    def close(self) -> None:
        """The fit is over: put everything back. Twice is once."""
