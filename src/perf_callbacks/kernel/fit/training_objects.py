"""Model, optimizers and data loaders with which a fit trains, as its integration knows them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from perf_callbacks.kernel.fit.rarer import Rarer
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.records.fit_records import Checklist


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingObjects:
    """Optimizers, data loaders and settings with which a fit trains."""

    optimizers: tuple[Any, ...] = ()
    loaders: tuple[Any, ...] = ()
    called: Any = None
    """The model that the training loop calls, including wrappers. None: unknown."""
    log_every: int | None = None
    """Steps between two log lines of the trainer. None: it logs nothing, or this is unknown."""
    nan_filter: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    """Arguments of the trainer that have an effect in this program -> the class that takes them."""
    rarer: Mapping[str, Rarer] = field(default_factory=dict)
    """How to make evaluations and checkpoints rarer, by the kind of span."""
    fusible: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class FitContext:
    """Arguments that the factories of observers get besides the recorder."""

    model: nn.Module | None
    objects: Callable[[], TrainingObjects] = TrainingObjects
    """Returns the fit's optimizers and loaders. The call may raise any error."""
    armed: bool = False
    """True if a launcher, and not the program itself, has added the callback."""
    checklist: Sequence[Checklist] = ()
    show: Callable[[str], object] = terminal.show
    """Shows a line on the console of rank 0."""


def flat(loaders: Any) -> tuple[Any, ...]:
    """Return the loaders in lists, mappings and Lightning's `CombinedLoader`."""
    loaders = getattr(loaders, "flattened", loaders)
    if isinstance(loaders, dict):
        loaders = [*loaders.values()]
    if isinstance(loaders, list | tuple):
        return tuple([part for loader in loaders for part in flat(loader)])
    return () if loaders is None else (loaders,)
