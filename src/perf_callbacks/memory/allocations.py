"""The storages of all tensors that a training step makes, and their lifetimes."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from perf_callbacks.kernel.fit.first_batch import tensors


class Allocation(weakref.ref[Any]):
    """Weak reference to a storage that the measured step made.

    Its callback is a C function: Python ignores exceptions in callbacks of weak references, so in a Python function a
    `KeyboardInterrupt` could get lost.
    """

    __slots__ = ("backward", "born", "freed", "kept", "key", "saved", "size")

    size: int
    key: int
    born: int
    freed: int | None
    backward: bool
    saved: bool
    kept: bool


class Allocations:
    """Tracks the storages of results by weak references. A view adds none: it shares the storage of its base."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._backward = 0
        self._broken = False
        self._all: list[Allocation] = []
        self._alive: dict[int, Allocation] = {}
        self._events: list[Allocation | None] = []  # None for each new storage, its allocation for each freed storage
        self._seen = 0  # events processed so far
        self._places: dict[int, tuple[Any, tuple[int, ...] | None]] = {}  # an operation, and which results are new
        self.activation_bytes = 0
        """Bytes of the forward that were alive when the backward began; of several backwards, the largest."""

    @property
    def seen(self) -> bool:
        """True if the step made storages and ran a backward, and no result was missed."""
        return bool(self._all) and self._backward > 0 and not self._broken

    def made(self, func: Any, out: Any, backward: int) -> None:
        """Record the result of an operation. `backward` is the number of the running backward, or 0."""
        try:
            self._made(func, out, backward)
        except Exception:
            self._broken = True
            raise

    def _made(self, func: Any, out: Any, backward: int) -> None:
        if backward and backward != self._backward:
            self._backward = backward
            self._turn()
        if id(func) not in self._places:
            schema = getattr(func, "_schema", None)  # higher-order operators, such as FlexAttention, have none
            new = schema and tuple([place for place, given in enumerate(schema.returns) if given.alias_info is None])
            self._places[id(func)] = func, new  # the reference keeps the `id` unique
        _, places = self._places[id(func)]
        if places is None:
            self._note(out, backward=bool(backward))
            return
        for place in places:
            self._note(out[place] if isinstance(out, tuple) else out, backward=bool(backward))

    def hold(self, storages: Iterable[Any]) -> None:
        """Track gradients that exist before the step, because the step may free them."""
        for storage in storages:
            self._follow(storage, backward=True)
            self.keep([storage._cdata])  # noqa: SLF001 there is no public identity

    def keep(self, storages: Iterable[int]) -> set[int]:
        """Mark gradients or optimizer state, which aren't temporary. Return the keys of those that are tracked."""
        self._take_in()
        tracked = {key: self._alive[key] for key in storages if key in self._alive}
        for allocation in tracked.values():
            allocation.kept = True
        return {*tracked}

    def temporary_bytes(self) -> int:
        """Return the peak of all storages except activations, gradients and optimizer state."""
        self._take_in()
        return _peak([allocation for allocation in self._all if not (allocation.saved or allocation.kept)])

    def peak_bytes(self) -> int:
        self._take_in()
        return _peak(self._all)

    def high_moments(self) -> list[tuple[int, int]]:
        """Return the moments that can be the peak of a step, depending on how many ranks share the gradients.

        Each is a pair: bytes of gradients, and of all other storages. No other moment has both sums at least as large.
        """
        self._take_in()
        highest: list[tuple[int, int]] = []
        for kept, rest in sorted(set(_moments(self._all)), reverse=True):  # most gradients first
            if not highest or rest > highest[-1][1]:
                highest.append((kept, rest))
        return highest

    def end(self) -> None:
        self._take_in()
        self._alive.clear()

    def _take_in(self) -> None:
        """Record which storages were freed. The numbers of events serve as times."""
        while self._seen < len(self._events):
            allocation, self._seen = self._events[self._seen], self._seen + 1
            if allocation is not None:
                allocation.freed = self._seen
                if self._alive.get(allocation.key) is allocation:
                    del self._alive[allocation.key]

    def _turn(self) -> None:
        """When a backward begins, what lives of the forward are activations."""
        self._take_in()
        saved = [allocation for allocation in self._alive.values() if not allocation.backward]
        for allocation in saved:
            allocation.saved = True
        self.activation_bytes = max(self.activation_bytes, sum([allocation.size for allocation in saved]))

    def _note(self, out: Any, *, backward: bool) -> None:
        for tensor in tensors(out):
            if tensor.device.type == self._device and tensor.layout is torch.strided:
                self._follow(tensor.untyped_storage(), backward=backward)

    def _follow(self, storage: Any, *, backward: bool) -> None:
        key = storage._cdata  # noqa: SLF001 there is no public identity
        self._take_in()
        if key in self._alive:
            return
        self._events.append(None)
        allocation = Allocation(storage, self._events.append)
        allocation.size, allocation.key, allocation.born, allocation.freed = (
            storage.nbytes(),
            key,
            len(self._events),
            None,
        )
        allocation.backward, allocation.saved, allocation.kept = backward, False, False
        self._all.append(allocation)
        self._alive[key] = allocation


def _peak(allocations: Iterable[Allocation]) -> int:
    return max([kept + rest for kept, rest in _moments(allocations)], default=0)


def _moments(allocations: Iterable[Allocation]) -> Iterator[tuple[int, int]]:
    """Yield the bytes of gradients and of all other storages, after each allocation and release."""
    changes = [(allocation.born, allocation.size, allocation.kept) for allocation in allocations]
    changes += [
        (allocation.freed, -allocation.size, allocation.kept)
        for allocation in allocations
        if allocation.freed is not None
    ]
    kept = rest = 0
    for _, size, is_kept in sorted(changes):
        kept, rest = (kept + size, rest) if is_kept else (kept, rest + size)
        yield kept, rest
