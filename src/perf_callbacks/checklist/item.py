"""The shape of an item of the checklist."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from perf_callbacks.core.config import PerfConfig
from perf_callbacks.core.records import Checklist, Gc
from perf_callbacks.core.steps import NEVER, Step
from perf_callbacks.host.collector import Progress
from perf_callbacks.host.environment import Environment

FORESEEN = "to be applied"
ALREADY = "already so"
ADVISED = "advised"
NOT_APPLICABLE = "not applicable"
SKIPPED = "skipped"
FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """How batches get to the device, as a door knows it. Functions are given by whose they are and their name."""

    pinned: bool | None = None
    """Whether the trainer's loaders pin. None: each as it was told to."""
    copied_aside: bool | None = None
    """Whether the trainer's copies are not waited for. None: it is not the trainer that copies."""
    loaders: tuple[Any, ...] = ()
    """The loaders that are known by now."""
    process: tuple[Any, str] | None = None
    """What makes others ready, and returns them."""
    first: tuple[Any, str] | None = None
    """What gets each batch before it is copied."""
    copy: tuple[Any, str] | None = None
    """What copies a batch to a device, unless it is asked to be `non_blocking`, waiting for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The fit that items are applied to."""

    config: PerfConfig
    environment: Environment
    step: int
    """Optimizer steps done before."""
    memory: Callable[[], Mapping[str, int]]
    """The bytes in use, by kind, as of now."""
    batches: Batches = Batches()
    aside: Callable[[], AbstractContextManager[object]] = nullcontext
    """What is done within is part of no step."""
    progress: Progress | None = None
    """How far the fit has come, for the watchdog to ask. None: nobody is to ask."""
    proving: bool = False
    """Whether what can be tried is to be tried first."""


class Applied:
    """An item, applied. By itself it asks for nothing, sees nothing, and can't be tried."""

    slug: str

    def __init__(self) -> None:
        self._due = NEVER
        self._news: list[Checklist] = []

    @property
    def due(self) -> int:
        """The step from whose end on there is something to do."""
        return self._due

    def step_ended(self, step: int) -> None:
        """A step that is due is about to end."""

    def span_began(self, kind: str, step: int) -> None:
        """Evaluation, checkpointing or the like has begun after that step."""

    def span_ended(self) -> None:
        """It is about to end."""

    @property
    def watching(self) -> bool:
        """Whether it wants to see anything."""
        return False

    def steps_measured(self, steps: Sequence[Step], pauses: Sequence[Gc]) -> None:
        """Steps are finished."""

    @property
    def asks(self) -> Mapping[str, int]:
        """What this rank asks all ranks for."""
        return {}

    def agreed(self, least: Mapping[str, int], step: int) -> None:
        """What holds on all ranks from the end of that step on."""

    @property
    def turns(self) -> bool:
        """Whether it can be done and left in turns, here and still."""
        return False

    collects: bool = False
    """Whether what it changes is when garbage is collected."""

    def hold(self) -> None:
        """Do nothing yet: it is to be tried."""

    def turn(self, step: int, *, done: bool) -> None:
        """After that step, a turn begins in which it is done or left; so a turn before it ends."""

    def keep(self, step: int) -> None:
        """From the end of that step on it is done, for good."""

    def leave(self, step: int) -> None:  # noqa: ARG002 it is the shape of all
        """From there on it is left, for good."""
        self.closed()

    def news(self) -> list[Checklist]:
        """What there is to say since the last call."""
        news, self._news = self._news, []
        return news

    def closed(self) -> None:
        """The fit is over: put everything back. Twice is once."""
        self._due = NEVER

    def _say(self, status: str, why: str, saved_seconds: tuple[float, float, float] | None = None) -> None:
        self._news.append(Checklist(item=self.slug, status=status, why=why, saved_seconds=saved_seconds))


class Item(Protocol):
    """One item. Items don't know of each other."""

    @property
    def slug(self) -> str:
        """What it is called, for good."""
        ...

    def decide(self, environment: Environment, config: PerfConfig) -> Checklist:
        """What is to be done. It only looks at what it is given."""
        ...

    def apply(self, fit: Fit) -> Applied:
        """Do what was decided to be applied. Closing what this returns undoes it."""
        ...
