"""Callbacks that join, or change places, while callbacks are being called."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

C = TypeVar("C")


class Enabled(Protocol):
    """A callback that can be turned off, or was added from outside."""

    armed: bool

    @property
    def enabled(self) -> bool:
        """False: it does nothing."""
        ...


E = TypeVar("E", bound=Enabled)


class Meanwhile(list[C]):
    """A stand-in for a list of callbacks that is being iterated over, and that gets one more callback at its end.

    The additional callback is in the running list alone. A callback that joins now joins both lists.
    """

    def __init__(self, running: list[C], last: C) -> None:
        super().__init__(running)
        self._running, self._last = running, last
        running.append(last)

    def append(self, callback: C, /) -> None:
        """Join both lists."""
        super().append(callback)
        self._running.append(callback)

    def settle(self) -> list[C]:
        """Return the running list without the additional callback, or a new list if the callbacks have changed."""
        if self._running[-1:] == [self._last]:  # removing it before others would make the running iteration skip one
            list.pop(self._running)
        same = [*map(id, self._running)] == [*map(id, self)]
        return self._running if same and not isinstance(self._running, Meanwhile) else [*self]


def settled(callbacks: list[C]) -> list[C]:
    """Return the callbacks as an ordinary list, also where the iteration over the running list was broken off."""
    return callbacks.settle() if isinstance(callbacks, Meanwhile) else callbacks


def move_to_front(callbacks: list[C], callback: C) -> None:
    """Let a callback be called before all others. In place: the list may be iterated over, and be at this callback."""
    place = next(place for place, other in enumerate(callbacks) if other is callback)
    callbacks.insert(0, callbacks.pop(place))


def first(callbacks: Iterable[object], kind: type[E]) -> E | None:
    """Find the callback that measures: of several of its kind in one trainer, the first that is enabled.

    One that was added from outside doesn't count where the program's own code has added one, also a disabled one.
    """
    ours = [callback for callback in callbacks if isinstance(callback, kind)]
    ours = [callback for callback in ours if not callback.armed] or ours
    return next((callback for callback in ours if callback.enabled), None)
