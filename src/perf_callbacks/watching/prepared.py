"""What an accelerator has prepared, and its loaders measured in place: to everybody else they are what they were."""

import functools
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader

from perf_callbacks.host.patches import Patches


class Told(Protocol):
    """Whom measured loaders tell. What goes wrong in here stays in here."""

    def fetch(self, loader: object) -> None:
        """The loop asks a loader for a batch."""

    def fetched(self, loader: object, batch: object) -> None:
        """A loader has handed over a batch."""

    def exhausted(self) -> None:
        """A loader has no more."""


class Source(Protocol):
    """Who knows whom measured loaders tell: now this one, now that one."""

    told: Told


class Prepared:
    """Models, optimizers, schedulers and loaders, in the order in which they were prepared."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._all: list[Any] = []
        self._patches = Patches()
        self._kinds: dict[type, type] = {}

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all)

    @property
    def models(self) -> list[nn.Module]:
        """Those that are modules."""
        return [one for one in self._all if isinstance(one, nn.Module)]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that are optimizers."""
        return [one for one in self._all if isinstance(one, torch.optim.Optimizer)]

    @property
    def loaders(self) -> tuple[DataLoader[Any], ...]:
        """Those that are torch's."""
        return tuple(one for one in self._all if isinstance(one, DataLoader))

    def see(self, prepared: object) -> list[Any]:
        """One or several were prepared; gives those that were not seen before."""
        several = prepared if isinstance(prepared, tuple | list) else (prepared,)
        new = [one for one in several if not any(one is other for other in self._all)]
        self._all += new
        for one in new:
            if isinstance(one, DataLoader):
                self._measure(one)
        return new

    def forget(self) -> None:
        """Let go of everything, and give the loaders back their classes."""
        self._all.clear()
        self._patches.restore()

    def _measure(self, loader: DataLoader[Any]) -> None:
        kind = type(loader)  # not its `__class__`: accelerate's loaders say that theirs is torch's
        if kind not in self._kinds:
            self._kinds[kind] = _measured(kind, self._source)
        _become(self._kinds[kind], loader)
        self._patches.add(functools.partial(_become, kind, loader))


def _become(kind: type, loader: object) -> None:
    """Give a loader another class, past a property that lets nobody set it."""
    vars(object)["__class__"].__set__(loader, kind)


def _measured(kind: type, source: Source) -> type:
    """A class of loaders, as `kind` in all but its iterations. Accelerate's pickle and copy as what they were."""

    def iterate(self: Any) -> Iterator[Any]:
        return _iterate(self, kind.__iter__(self), source)  # type: ignore[attr-defined]

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (kind,), names | {"__iter__": iterate})


def _iterate(loader: object, batches: Iterator[Any], source: Source) -> Iterator[Any]:
    source.told.fetch(loader)
    for batch in batches:
        source.told.fetched(loader, batch)
        held = [batch]
        del batch  # a batch on a device is freed when the loop lets go of it, not when the next one is there
        yield held.pop()
        source.told.fetch(loader)
    source.told.exhausted()
