"""Interface of the checklist's items."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

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
    """Path of batches to the device, as the integration knows it. A function is given by its owner and its name."""

    pinned: bool | None = None
    """True: the trainer's loaders pin their batches. None: each loader keeps its own setting."""
    copied_aside: bool | None = None
    """True: the trainer doesn't wait for its copies. None: the trainer doesn't copy."""
    loaders: tuple[Any, ...] = ()
    """Loaders that are known by now."""
    devices: int = 1
    """Devices that the process drives."""
    workers: int = 0
    """Number of the training loader's worker processes, if the trainer knows it. `loaders` know their own workers."""
    process: tuple[Any, str] | None = None
    """Function that prepares other loaders and returns them."""
    first: tuple[Any, str] | None = None
    """Function that gets each batch before it is copied."""
    first_batch: "FirstBatch | None" = None
    """Receives the first batch, if the integration itself reads each batch before it is copied."""
    copy: tuple[Any, str] | None = None
    """Function that copies a batch to a device, and waits unless it is called with `non_blocking`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Fit to which items are applied."""

    config: PerfConfig
    environment: Environment
    step: int
    """Optimizer steps done before."""
    memory: Callable[[], Mapping[str, int]]
    """Returns the bytes in use, by kind."""
    batches: Batches = Batches()
    aside: Callable[[], AbstractContextManager[object]] = nullcontext
    """Context whose time is part of no step."""
    progress: Progress | None = None
    """Progress of the fit, by which the watchdog detects an abandoned fit. None: the watchdog doesn't check."""
    proving: bool = False
    """True: items are tried first if possible."""


class ActiveItem(Observer):
    """An applied item. The base class requests nothing, receives no events, and can't be tried."""

    slug: str

    def __init__(self) -> None:
        self._due = NEVER
        self._news: list[Checklist] = []

    @property
    def due(self) -> int:
        """Step at whose end the item has work to do."""
        return self._due

    @property
    def turns(self) -> bool:
        """True: the item can be turned on and off here and now."""
        return False

    collects: bool = False
    """True: the item changes when garbage is collected."""

    def hold(self) -> None:
        """Wait for the trial: change nothing yet."""

    def turn(self, step: int, *, done: bool) -> None:
        """End the current turn after step `step`, and begin a turn with the item on or off."""

    def keep(self, step: int) -> None:
        """Apply the item for good from the end of `step` on."""

    def leave(self, step: int) -> None:  # noqa: ARG002 the signature of all items
        """Leave the item off for good from the end of `step` on."""
        self.closed()

    def news(self) -> list[Checklist]:
        """Return the checklist rows since the last call."""
        news, self._news = self._news, []
        return news

    def closed(self) -> None:
        """Undo the item's changes."""
        self._due = NEVER

    def _say(self, status: str, why: str, saved_seconds: tuple[float, float, float] | None = None) -> None:
        self._news.append(Checklist(item=self.slug, status=status, why=why, saved_seconds=saved_seconds))


class Item(Protocol):
    """One item. Items don't know each other."""

    @property
    def slug(self) -> str:
        """Permanent name of the item."""
        ...

    def decide(self, environment: Environment, config: PerfConfig) -> Checklist:
        """Return the decision about the item, made from the arguments alone."""
        ...

    def apply(self, fit: Fit) -> ActiveItem:
        """Apply the decision. `closed` of the returned object undoes the change."""
        ...
