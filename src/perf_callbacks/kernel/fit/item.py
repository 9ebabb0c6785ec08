"""Interface of the startup checklist's items."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.fit.environment import Environment
from perf_callbacks.kernel.process.collector import Progress
from perf_callbacks.kernel.records.fit_records import Checklist
from perf_callbacks.kernel.settings.config import PerfConfig

if TYPE_CHECKING:
    from perf_callbacks.kernel.fit.first_batch import FirstBatch

FORESEEN = "to be applied"
ALREADY = "already so"
ADVISED = "advised"
NOT_APPLICABLE = "not applicable"
SKIPPED = "skipped"
FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """How batches get to the device. A function is a pair `(owner, name)`, for `getattr(owner, name)`."""

    pinned: bool | None = None
    """True if the trainer's loaders pin their batches. None: each loader keeps its own setting."""
    copied_aside: bool | None = None
    loaders: tuple[Any, ...] = ()
    devices: int = 1
    workers: int = 0
    """Of the training loader, if the trainer knows their number; `loaders` know their own."""
    process: tuple[Any, str] | None = None
    """The trainer calls it to prepare a data loader, which it returns."""
    first: tuple[Any, str] | None = None
    """Gets each batch before it is copied to the device."""
    first_batch: "FirstBatch | None" = None
    """Receives the first batch, if the integration reads batches before their copy to the device."""
    copy: tuple[Any, str] | None = None
    """Copies a batch to a device. Without `non_blocking=True`, it waits for the copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The fit to which checklist items are applied."""

    config: PerfConfig
    environment: Environment
    step: int
    memory: Callable[[], Mapping[str, int]]
    """Returns the bytes in use for each kind of memory."""
    batches: Batches = Batches()
    aside: Callable[[], AbstractContextManager[object]] = nullcontext
    """The time in this block counts for no step."""
    progress: Progress | None = None
    """By which the watchdog sees whether the fit still goes on. None: it doesn't look."""


class ActiveItem(Observer):
    """An applied checklist item. The base class requests nothing, and receives no events."""

    slug: str

    def __init__(self) -> None:
        self._due = NEVER
        self._news: list[Checklist] = []

    @property
    @override
    def due(self) -> int:
        return self._due

    def news(self) -> list[Checklist]:
        news, self._news = self._news, []
        return news

    @override
    def closed(self) -> None:
        self._due = NEVER

    def _say(self, status: str, why: str) -> None:
        self._news.append(Checklist(item=self.slug, status=status, why=why))


class Item(NamedTuple):
    """An item of the startup checklist. Items don't know each other."""

    slug: str
    """It never changes."""
    decide: Callable[[Environment, PerfConfig], Checklist]
    apply: Callable[[Fit], ActiveItem]
