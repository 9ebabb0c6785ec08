"""A stretch of training that is counted: a counter entered and left in the midst of a run, not by a `with` block."""

import math
from contextlib import ExitStack, suppress
from threading import current_thread
from weakref import finalize

import torch

from perf_callbacks.flops.counter import FlopCounter
from perf_callbacks.flops.phases import in_backward
from perf_callbacks.flops.stance import STANCE, in_compiled_call


class CountWindow:
    """Counts from `open` until `close`, on the thread that opened it; in between it can be left and entered again.

    What is compiled runs eagerly meanwhile, and is as compiled as before afterwards. Compiled code under a mode would
    give up its compilation for good.

    `open` and `close` first note what they are about to change, and can be repeated: an interrupt at any point leaves
    nothing that the next call, the death of the window, or a tick does not put right.
    """

    def __init__(self, patience_seconds: float = math.inf) -> None:
        self.counter = FlopCounter()
        self.patience_seconds = patience_seconds
        """The count is given up after so long without any operation: the loop may be over, and nobody told us."""
        self._thread = current_thread()
        self._opened = False
        self._given_up = False
        self._last: tuple[int, float] | None = None  # operations, and when there were last so many
        self.left_behind = False
        """The counter is still on the stack of modes: below one of somebody else, or out of reach for the moment."""
        finalize(self, _abandon, self.counter).atexit = False

    def open(self) -> None:
        """Count from here on, again. Where modes are lent this begins nothing, but goes on after a `close` there."""
        if self._opened or self._given_up:
            return
        stays = self.counter.pushed and self.counter in self.counter.stack()
        if not stays and (self.counter.inert or _modes_are_lent()):
            return
        try:
            self._opened, self._last = True, None
            STANCE.hold(self.counter)
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
        """Leave this thread's modes until the next module is called: there may be none."""
        if self._opened and not _modes_are_lent() and self.counter.stack()[-1:] == [self.counter]:
            self.counter.step_aside()

    def close(self) -> None:
        """Count no more. Twice is once; what had to be left behind is tried again."""
        try:
            self._end()
        except BaseException:  # an interrupt: all of it can be done again
            self._end()
            raise

    def _end(self) -> None:
        self._opened = False
        with ExitStack() as steps:  # what goes wrong in one of them must not keep the rest from being done
            steps.callback(STANCE.release, self.counter)
            steps.callback(self._leave)
            steps.callback(self.counter.unhook)

    def _leave(self) -> None:
        if self.counter.pushed:
            self.counter.inert = True
            if current_thread() is self._thread and not _modes_are_lent():
                _sweep()
        self.left_behind = self.counter.pushed
        self.counter.inert = self.left_behind or self._given_up

    def tick(self, now: float) -> bool:
        """Give the count up where nothing has happened for long, or its thread has ended; called by a side thread."""
        if self._opened:
            operations = self.counter.operations
            if self._last is None or self._last[0] != operations:
                self._last = operations, now
            if now - self._last[1] > self.patience_seconds or not self._thread.is_alive():
                self._given_up = True
                self.counter.forget()
                self.close()
        return not self._given_up


def _modes_are_lent() -> bool:
    """Autograd, the compiler and inference mode put back a thread's modes, or its dispatch keys, when they end.

    A counter that is taken off in there leaves keys without a mode, and operations that make tensors fail.
    """
    return bool(in_backward()) or torch.is_inference_mode_enabled() or in_compiled_call()


def _sweep() -> None:
    """Take our counters that count no more off this thread's stack of modes, as far as they are on top."""
    for counter in reversed(FlopCounter.stack()):
        if not (isinstance(counter, FlopCounter) and counter.inert):
            break
        counter.leave_stack()


def _abandon(counter: FlopCounter) -> None:
    """Let go for a window that was freed, open or not. The counter may still be on the stack of a thread."""
    counter.inert = True
    with suppress(Exception):  # nobody is there to hear of it
        try:
            _let_go(counter)
        except BaseException:  # an interrupt, as in `close`
            _let_go(counter)
            raise


def _let_go(counter: FlopCounter) -> None:
    STANCE.release(counter)
    counter.unhook()
