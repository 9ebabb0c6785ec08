"""Push a FLOP counter onto a thread's stack of dispatch modes, and remove it, without a `with` block."""

import math
from contextlib import ExitStack
from threading import current_thread
from weakref import finalize

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes

from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.counting.stacked_mode import modes_are_lent
from perf_callbacks.kernel.foreign_errors import suppress


class CountWindow:
    """Counts FLOPs between `open` and `close`, on the thread that calls `open`.

    An interrupt such as Ctrl-C may stop either halfway. The next call of either, the watchdog or the finalizer then
    restores everything: each change is recorded beforehand.
    """

    def __init__(self, patience_seconds: float = math.inf, counter: FlopCounter | None = None) -> None:
        self.counter = counter or FlopCounter()
        self.patience_seconds = patience_seconds
        """Without any operation for so long, the count ends: the loop may have ended."""
        self._thread = current_thread()
        self._opened = False
        self._last: tuple[int, float] | None = None  # number of operations, and the time of the last change
        self.left_behind = False
        """True if the counter can't be removed from the stack yet, for example because it is below another mode."""
        finalize(self, _abandon, self.counter).atexit = False

    def open(self) -> None:
        """Start or resume counting; in a backward or a compiled call, only if the counter is still on the stack."""
        limit = self.counter.limit
        if self._opened or self.counter.lost or (limit is not None and limit.ended is not None):
            return
        stays = self.counter.pushed and self.counter in dispatch_modes()
        if not stays and (self.counter.inert or modes_are_lent()):
            return
        try:
            self._opened, self._last = True, None
            self.counter.hook()
            if stays:
                self.counter.inert = self.left_behind = False
            else:
                _sweep()
                self.counter.enter_stack()
        except BaseException:
            self.close()
            raise

    def step_aside(self) -> None:
        if self._opened and not modes_are_lent() and dispatch_modes()[-1:] == [self.counter]:
            self.counter.step_aside()

    def close(self) -> None:
        """A second call only removes a counter that the first could not remove."""
        try:
            self._end()
        except BaseException:  # an interrupt: all steps can be repeated
            self._end()
            raise

    def _end(self) -> None:
        self._opened = False
        with ExitStack() as steps:  # an error in one step must not skip the other steps
            steps.callback(self._leave)
            steps.callback(self.counter.unhook)

    def _leave(self) -> None:
        if self.counter.pushed:
            self.counter.inert = True
            if current_thread() is self._thread and not modes_are_lent():
                _sweep()
        self.left_behind = self.counter.pushed
        self.counter.inert = self.left_behind or self.counter.lost

    def tick(self, now: float) -> bool:
        if self._opened:
            operations = self.counter.operations
            if self._last is None or self._last[0] != operations:
                self._last = operations, now
            if now - self._last[1] > self.patience_seconds or not self._thread.is_alive():
                self.counter.lose()
                self.close()
        return self._opened or not self.counter.lost  # a lost counter's hooks must still be undone


def _sweep() -> None:
    for counter in reversed(dispatch_modes()):
        if not (isinstance(counter, FlopCounter) and counter.inert):
            break
        counter.leave_stack()


def _abandon(counter: FlopCounter) -> None:
    """Stop the counter of a window that is gone; it may still be on a thread's stack."""
    counter.inert = True
    with suppress(Exception):  # no caller would see an error here
        try:
            counter.unhook()
        except BaseException:  # an interrupt, as in `close`
            counter.unhook()
            raise
