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
    """How batches get to the device, as the integration knows it.

    A function is given as a pair `(owner, name)`: the function is `getattr(owner, name)`.
    """

    pinned: bool | None = None
    """True if the trainer's loaders pin their batches. None: each loader keeps its own setting."""
    copied_aside: bool | None = None
    """True if the trainer doesn't wait until a batch is copied. None: the trainer doesn't copy batches."""
    loaders: tuple[Any, ...] = ()
    """Data loaders that are already known."""
    devices: int = 1
    """Number of devices that this process drives."""
    workers: int = 0
    """Number of worker processes of the training loader, if the trainer knows the number. Each object in `loaders`
    knows its own number of workers."""
    process: tuple[Any, str] | None = None
    """Function that the trainer calls to prepare a data loader. The function returns the prepared loader."""
    first: tuple[Any, str] | None = None
    """Function that gets each batch before the batch is copied to the device."""
    first_batch: "FirstBatch | None" = None
    """Object that receives the first batch, if the integration reads batches before their copy to the device."""
    copy: tuple[Any, str] | None = None
    """Function that copies a batch to a device. Without `non_blocking=True`, the function waits for the copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The fit to which checklist items are applied."""

    config: PerfConfig
    environment: Environment
    step: int
    """Number of optimizer steps done before this fit."""
    memory: Callable[[], Mapping[str, int]]
    """Function that returns the number of bytes in use for each kind of memory."""
    batches: Batches = Batches()
    aside: Callable[[], AbstractContextManager[object]] = nullcontext
    """Function that returns a context manager. The time in the block of this context manager is not counted in any
    step."""
    progress: Progress | None = None
    """Function by which the watchdog checks whether the fit still goes on. None: the watchdog doesn't check."""


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
        """Return the checklist rows that were added since the last call."""
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
    """Name of the item, which never changes."""
    decide: Callable[[Environment, PerfConfig], Checklist]
    """Function that returns the decision about the item. The decision depends only on the arguments."""
    apply: Callable[[Fit], ActiveItem]
    """Function that applies the item. The method `closed` of the returned object undoes the change."""
