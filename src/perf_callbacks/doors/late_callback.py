"""Callbacks that join while callbacks are being called."""

from typing import TypeVar

C = TypeVar("C")


class Meanwhile(list[C]):
    """The callbacks, while another list of them is iterated over, which gets one more at its end.

    Nobody who looks at the callbacks finds that one among them. A callback that joins now joins both lists.
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
        """Return the list that was there before, without the one more, or a new one if the callbacks are others now."""
        if self._running[-1:] == [self._last]:  # one that comes later would be left out of what iterates over the list
            list.pop(self._running)
        same = [*map(id, self._running)] == [*map(id, self)]
        return self._running if same and not isinstance(self._running, Meanwhile) else [*self]


def settled(callbacks: list[C]) -> list[C]:
    """Return the callbacks as an ordinary list, also where nobody got to the end of iterating over the other one."""
    return callbacks.settle() if isinstance(callbacks, Meanwhile) else callbacks
