"""The shape of an item of the checklist."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from perf_callbacks.core.config import PerfConfig
from perf_callbacks.core.records import Checklist
from perf_callbacks.core.sources import Upkeep
from perf_callbacks.host.environment import Environment

APPLIED = "applied"
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


class Item(Protocol):
    """One item. Items don't know of each other."""

    @property
    def slug(self) -> str:
        """What it is called, for good."""
        ...

    def decide(self, environment: Environment, config: PerfConfig) -> Checklist:
        """What is to be done. It only looks at what it is given."""
        ...

    def apply(self, fit: Fit) -> Upkeep:
        """Do what was decided to be applied. Closing what this returns undoes it."""
        ...
