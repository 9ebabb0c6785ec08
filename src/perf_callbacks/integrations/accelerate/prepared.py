"""Objects that an accelerator has prepared. A prepared loader is measured, but stays the same object."""

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from perf_callbacks.integrations.accelerate.subclasses import put_on, watched
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.patches import Patches

if TYPE_CHECKING:
    from perf_callbacks.integrations.accelerate.accelerator_session import AcceleratorSession


class PreparedObjects:
    """Weak references to prepared models, optimizers, schedulers and loaders, in the order of preparation.

    A loader's events go to the session's `listener` of that moment, whose methods never raise; its `leave` gets
    `exhausted=False` after a `break` or an exception.
    """

    def __init__(self, session: "AcceleratorSession") -> None:
        self._session = weakref.ref(session)
        self._all: list[weakref.ref[Any]] = []
        self._patches = Patches()
        self._kinds: dict[type, type] = {}

    def __iter__(self) -> Iterator[Any]:
        return iter([member for member in [reference() for reference in self._all] if member is not None])

    @property
    def models(self) -> list[nn.Module]:
        return [member for member in self if isinstance(member, nn.Module)]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [member for member in self if isinstance(member, torch.optim.Optimizer)]

    @property
    def loaders(self) -> tuple[DataLoader[Any], ...]:
        return tuple(member for member in self if isinstance(member, DataLoader))

    def see(self, prepared: object) -> list[Any]:
        several = prepared if isinstance(prepared, tuple | list) else (prepared,)
        earlier = [*self]
        self._all = [reference for reference in self._all if reference() is not None]
        new = [member for member in several if not any(member is other for other in earlier)]
        for member in new:
            with suppress(TypeError):  # an object that can't be held weakly is not measured
                self._all.append(weakref.ref(member))
            if isinstance(member, DataLoader):
                self._measure(member)
        return new

    def forget(self) -> None:
        self._all.clear()
        self._patches.restore()

    def _measure(self, loader: DataLoader[Any]) -> None:
        kind = type(loader)
        if kind not in self._kinds:
            self._kinds[kind] = _measured(kind, self._session)
        self._patches.add(put_on(loader, self._kinds[kind]))


def _measured(kind: type, session: "weakref.ref[AcceleratorSession]") -> type:
    def iterate(self: Any) -> Iterator[Any]:
        owner, batches = session(), kind.__iter__(self)  # type: ignore[attr-defined]
        return batches if owner is None else _iterate(self, batches, session)

    return watched(kind, {"__iter__": iterate})


def _iterate(loader: object, batches: Iterator[Any], session: "weakref.ref[AcceleratorSession]") -> Iterator[Any]:
    if (owner := session()) is not None:
        owner.listener.fetch(loader)
    try:
        for batch in batches:
            if (owner := session()) is not None:
                owner.listener.fetched(loader, batch)
            held, owner = [batch], None  # an iterator that the loop keeps must not keep the fit, nor its models
            del batch  # a batch on a device is freed when the loop drops the batch, not when the next batch is there
            yield held.pop()
            if (owner := session()) is not None:
                owner.listener.fetch(loader)
        if owner is not None:
            owner.listener.leave(exhausted=True)
    except BaseException:  # an exception that the loop may not survive, or a `break`: nothing else reports these
        if (owner := session()) is not None:
            owner.listener.leave()
        raise
