"""Optimizers and loaders that a fit trains with, as its integration knows them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Optimizers, loaders and settings that a fit trains with."""

    optimizers: tuple[Any, ...] = ()
    loaders: tuple[Any, ...] = ()
    log_every: int | None = None
    """Steps from one log line of the trainer to the next."""
    nan_filter: bool = False
    """True: the trainer looks at each loss for NaN."""


def flat(loaders: Any) -> tuple[Any, ...]:
    """Return the loaders in lists, mappings and Lightning's `CombinedLoader`."""
    loaders = getattr(loaders, "flattened", loaders)
    if isinstance(loaders, dict):
        loaders = [*loaders.values()]
    if isinstance(loaders, list | tuple):
        return tuple([one for loader in loaders for one in flat(loader)])
    return () if loaders is None else (loaders,)
