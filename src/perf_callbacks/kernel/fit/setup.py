"""Model, optimizers and loaders that a fit trains with, as its integration knows them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.records.fit_records import Checklist


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Optimizers, loaders and settings that a fit trains with."""

    optimizers: tuple[Any, ...] = ()
    loaders: tuple[Any, ...] = ()
    called: Any = None
    """The model as training calls it, with its wrappers. None: unknown."""
    log_every: int | None = None
    """Steps from one log line of the trainer to the next. None: the trainer logs nothing, or its steps are unknown."""
    nan_filter: bool = False
    """True: the trainer checks each loss for NaN."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Arguments for the factories of observers, in addition to the recorder."""

    model: nn.Module | None
    """The model whose FLOPs are counted. None: no FLOPs are counted."""
    setup: Callable[[], Setup] = Setup
    """Reads the fit's optimizers and loaders. The call may raise, because an integration's objects may be anything."""
    armed: bool = False
    """True: a launcher added the callback, and not the program itself."""
    checklist: Sequence[Checklist] = ()
    """Rows of the checklist, as decided when the fit began."""
    show: Callable[[str], object] = terminal.show
    """Shows a line on the console of rank 0."""


def flat(loaders: Any) -> tuple[Any, ...]:
    """Return the loaders in lists, mappings and Lightning's `CombinedLoader`."""
    loaders = getattr(loaders, "flattened", loaders)
    if isinstance(loaders, dict):
        loaders = [*loaders.values()]
    if isinstance(loaders, list | tuple):
        return tuple([one for loader in loaders for one in flat(loader)])
    return () if loaders is None else (loaders,)
