"""The shape of an item of the checklist."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from perf_callbacks.core.config import PerfConfig
from perf_callbacks.core.records import Checklist
from perf_callbacks.core.sources import Upkeep
from perf_callbacks.host.environment import Environment

APPLIED = "applied"
ALREADY = "already so"
ADVISED = "advised"
NOT_APPLICABLE = "not applicable"
SKIPPED = "skipped"
FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The fit that items are applied to."""

    config: PerfConfig
    environment: Environment
    step: int
    """Optimizer steps done before."""
    memory: Callable[[], Mapping[str, int]]
    """The bytes in use, by kind, as of now."""


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
