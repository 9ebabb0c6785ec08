"""Choice of the callback that measures a trainer, and of its place among the trainer's callbacks."""

from collections.abc import Iterable
from typing import TypeVar

from perf_callbacks.kernel.fit.recorder import log
from perf_callbacks.session import CallbackBase

C = TypeVar("C")


class CallbackListCopy(list[C]):
    """Copy of a trainer's list of callbacks, used while the trainer iterates over the original list.

    The late callback is only in the original, where the trainer calls it last. One that is appended meanwhile goes into
    both.
    """

    def __init__(self, running: list[C], last: C) -> None:
        super().__init__(running)
        self.running, self.last = running, last
        running.append(last)

    def append(self, callback: C, /) -> None:
        super().append(callback)
        self.running.append(callback)


def settled(callbacks: list[C]) -> list[C]:
    """Without the late callback; a new list if the original has changed, as an exception may have left it."""
    if not isinstance(callbacks, CallbackListCopy):
        return callbacks
    running = callbacks.running
    if running[-1:] == [callbacks.last]:  # removing it from the middle would make the iteration skip a callback
        running.pop()
    same = [*map(id, running)] == [*map(id, callbacks)]
    return running if same and not isinstance(running, CallbackListCopy) else [*callbacks]


def move_to_front(callbacks: list[C], callback: C) -> None:
    """In place, because the trainer may be iterating over the list."""
    place = next(place for place, other in enumerate(callbacks) if other is callback)
    callbacks.insert(0, callbacks.pop(place))


def measures(callback: CallbackBase, callbacks: Iterable[object], *, warns: bool = True) -> bool:
    """Only the first enabled `PerfCallback` measures; a launcher's doesn't count if the program has its own."""
    ours = [other for other in callbacks if isinstance(other, CallbackBase)]
    ours = [other for other in ours if not other.armed] or ours
    if next((other for other in ours if other.enabled), None) is callback:
        return True
    if warns and not callback.armed:
        log.warning("perf_callbacks: another PerfCallback measures this trainer, this one does nothing.")
    return False
