"""Tensors that a counted step makes, and when they are freed: activations, gradients, temporary memory."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch


class Allocation:
    """One storage that the step made."""

    __slots__ = ("backward", "born", "freed", "kept", "saved", "size")

    def __init__(self, size: int, born: int, *, backward: bool) -> None:
        self.size, self.born, self.backward = size, born, backward
        self.freed: int | None = None
        self.saved = self.kept = False


class Allocations:
    """Follows the storages of operations' results, seen by a counter of operations.

    Storages are held weakly. A result that shares the storage of an operand, such as a view, is no new one.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._time = self._backward = 0
        self._broken = False
        self._all: list[Allocation] = []
        self._alive: dict[int, tuple[Allocation, weakref.ref[Any]]] = {}
        self.activation_bytes = 0
        """Largest sum of what a forward made and had not freed when a backward began."""
        self.kept_bytes = 0
        """Sum of the gradients and optimizer state that the step made."""

    @property
    def seen(self) -> bool:
        """True: the step made something and ran a backward, and all of it was followed."""
        return bool(self._all) and self._backward > 0 and not self._broken

    def made(self, func: Any, out: Any, backward: int) -> None:
        """Note the result of an operation, in the backward of that number or in none (0)."""
        try:
            self._made(func, out, backward)
        except Exception:
            self._broken = True
            raise

    def _made(self, func: Any, out: Any, backward: int) -> None:
        if backward and backward != self._backward:
            self._backward = backward
            self._turn()
        schema = getattr(func, "_schema", None)
        if schema is None:  # a higher-order operator, such as FlexAttention's: its results are new
            self._note(out, backward=bool(backward))
            return
        for place, given in enumerate(schema.returns):
            if given.alias_info is None:
                self._note(out[place] if isinstance(out, tuple) else out, backward=bool(backward))

    def keep(self, storages: Iterable[int]) -> None:
        """Take these storages, by their identity, for gradients or optimizer state, which are measured otherwise."""
        for key in storages:
            if key in self._alive:
                one = self._alive[key][0]
                self.kept_bytes += 0 if one.kept else one.size
                one.kept = True

    def temporary_bytes(self) -> int:
        """Return the largest sum, at any moment, of all that is neither activation nor kept."""
        return _peak([one for one in self._all if not (one.saved or one.kept)])

    def peak_bytes(self) -> int:
        """Return the largest sum, at any moment, of all that the step made."""
        return _peak(self._all)

    def end(self) -> None:
        """Follow no storage any more."""
        self._alive.clear()

    def _turn(self) -> None:
        """A backward begins: what the forward made and is alive is an activation."""
        saved = [one for one, _ in self._alive.values() if not one.backward]
        for one in saved:
            one.saved = True
        self.activation_bytes = max(self.activation_bytes, sum([one.size for one in saved]))

    def _note(self, out: Any, *, backward: bool) -> None:
        if isinstance(out, list | tuple):
            for one in out:
                self._note(one, backward=backward)
        if not isinstance(out, torch.Tensor) or out.device.type != self._device or out.layout is not torch.strided:
            return
        storage = out.untyped_storage()
        key = storage._cdata  # noqa: SLF001 as above
        if key in self._alive:
            return
        self._time += 1
        one = Allocation(storage.nbytes(), self._time, backward=backward)
        alive = self._alive

        def free(_: object) -> None:
            alive.pop(key, None)
            self._time += 1
            one.freed = self._time

        self._all.append(one)
        alive[key] = one, weakref.ref(storage, free)


def _peak(allocations: Iterable[Allocation]) -> int:
    """Return the largest sum of sizes at any moment."""
    changes = [(one.born, one.size) for one in allocations]
    changes += [(one.freed, -one.size) for one in allocations if one.freed is not None]
    now = most = 0
    for _, size in sorted(changes):
        now += size
        most = max(most, now)
    return most
