"""Choice of the callback that measures a trainer, and of its place among the trainer's callbacks."""

from collections.abc import Iterable
from typing import TypeVar

from perf_callbacks.kernel.fit.recorder import log
from perf_callbacks.session import CallbackBase

C = TypeVar("C")


class LateCallbackList(list[C]):
    """Copy of a trainer's list of callbacks, used while the trainer iterates over the original list.

    A late callback is appended only to the original list, so that the trainer calls the late callback last. A callback
    that is appended during the iteration goes into both lists.
    """

    def __init__(self, running: list[C], last: C) -> None:
        super().__init__(running)
        self.running, self.last = running, last
        running.append(last)

    def append(self, callback: C, /) -> None:
        super().append(callback)
        self.running.append(callback)


def settled(callbacks: list[C]) -> list[C]:
    """Return an ordinary list of the callbacks, even if an exception has interrupted the trainer's iteration.

    The result is the original list without the late callback, or a new list if the original list has changed.
    """
    if not isinstance(callbacks, LateCallbackList):
        return callbacks
    running = callbacks.running
    if running[-1:] == [callbacks.last]:  # removing it from the middle would make the iteration skip a callback
        running.pop()
    same = [*map(id, running)] == [*map(id, callbacks)]
    return running if same and not isinstance(running, LateCallbackList) else [*callbacks]


def move_to_front(callbacks: list[C], callback: C) -> None:
    """Move a callback to the front of the list.

    Change the list in place, because the trainer may be iterating over it.
    """
    place = next(place for place, other in enumerate(callbacks) if other is callback)
    callbacks.insert(0, callbacks.pop(place))


def measures(callback: CallbackBase, callbacks: Iterable[object], *, warns: bool = True) -> bool:
    """Return True if this callback is the trainer's first enabled `PerfCallback`, which measures the trainer.

    Warn if another `PerfCallback` measures the trainer. Ignore a launcher's callbacks if the program has its own
    `PerfCallback`, enabled or not.
    """
    ours = [one for one in callbacks if isinstance(one, CallbackBase)]
    ours = [one for one in ours if not one.armed] or ours
    if next((one for one in ours if one.enabled), None) is callback:
        return True
    if warns and not callback.armed:
        log.warning("perf_callbacks: another PerfCallback measures this trainer, this one does nothing.")
    return False
