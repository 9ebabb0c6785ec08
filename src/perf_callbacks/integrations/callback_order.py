"""Changes to a trainer's list of callbacks while the trainer iterates over the list."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

C = TypeVar("C")


class Enabled(Protocol):
    """Callback that can be turned off, or was added from outside."""

    armed: bool

    @property
    def enabled(self) -> bool:
        """False: the callback does nothing."""
        ...


E = TypeVar("E", bound=Enabled)


class LateCallbackList(list[C]):
    """Stand-in for a list of callbacks during an iteration, which gets an additional callback at its end.

    Only the running list, over which the trainer iterates, has the additional callback. A callback appended during the
    iteration goes into both lists.
    """

    def __init__(self, running: list[C], last: C) -> None:
        super().__init__(running)
        self._running, self._last = running, last
        running.append(last)

    def append(self, callback: C, /) -> None:
        """Append a callback to both lists."""
        super().append(callback)
        self._running.append(callback)

    def settle(self) -> list[C]:
        """Return the running list without the additional callback, or a new list if the callbacks have changed."""
        if self._running[-1:] == [self._last]:  # removing it from the middle would make the iteration skip a callback
            list.pop(self._running)
        same = [*map(id, self._running)] == [*map(id, self)]
        return self._running if same and not isinstance(self._running, LateCallbackList) else [*self]


def settled(callbacks: list[C]) -> list[C]:
    """Return the callbacks as an ordinary list, even if an exception ended the iteration over the running list."""
    return callbacks.settle() if isinstance(callbacks, LateCallbackList) else callbacks


def move_to_front(callbacks: list[C], callback: C) -> None:
    """Move a callback to the front, in place: an iteration over the list may be at this very callback."""
    place = next(place for place, other in enumerate(callbacks) if other is callback)
    callbacks.insert(0, callbacks.pop(place))


def first(callbacks: Iterable[object], kind: type[E]) -> E | None:
    """Return the callback that measures a trainer: the first enabled callback of a kind.

    Callbacks added from outside count only if the program's own code has added none, not even a disabled callback.
    """
    ours = [callback for callback in callbacks if isinstance(callback, kind)]
    ours = [callback for callback in ours if not callback.armed] or ours
    return next((callback for callback in ours if callback.enabled), None)
