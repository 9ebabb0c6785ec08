"""Callbacks that join while callbacks are being called."""

from typing import TypeVar

C = TypeVar("C")


class Meanwhile(list[C]):
    """The callbacks, while another list of them is iterated over: who joins now is not left out of that."""

    def __init__(self, running: list[C]) -> None:
        super().__init__(running)
        self._running = running

    def append(self, callback: C, /) -> None:
        """Join both lists."""
        super().append(callback)
        self._running.append(callback)
