"""A stretch of training that is counted: a counter entered and left in the midst of a run, not by a `with` block."""

import sys
import warnings
from contextlib import ExitStack
from threading import get_ident
from typing import Any

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from perf_callbacks.flops.counter import FlopCounter

_GLOBAL_HOOKS = "Using .torch.compile.module.. when there are global hooks on modules"
"""What compiled modules say of our looking at modules, for which it makes no difference."""


class CountWindow:
    """Counts from `open` until `close`, on the thread that opened it; in between it can be left and entered again.

    What is compiled runs eagerly meanwhile, and is as compiled as before afterwards. Compiled code under a mode would
    give up its compilation for good.
    """

    def __init__(self) -> None:
        self.counter = FlopCounter()
        self._thread = get_ident()
        self._stance: Any = None
        self._entered = False
        self.left_behind = False
        """Whether the counter is still on the stack of modes, below one of somebody else, or another thread's."""

    def open(self) -> None:
        """Count from here on, again."""
        if self._entered or self.counter.inert:
            return
        self._hold_compiler()
        try:
            self.counter.__enter__()
        except BaseException:
            self._let_compiler_go()
            raise
        self._entered = True

    def close(self) -> None:
        """Count no more. Twice is once; what had to be left behind is tried again."""
        if self._entered:
            self._entered = False
            with ExitStack() as steps:  # an interrupt in one of them must not keep the rest from being done
                for step in (self._let_compiler_go, self._leave, self.counter.unhook):  # the last one first
                    steps.callback(step)
        elif self.left_behind:
            self._leave()

    def _leave(self) -> None:
        """Torch takes whatever mode is on top, so it must be ours. Left below another one, it passes everything on."""
        stack = _get_current_dispatch_mode_stack()
        self.left_behind = self.counter.inert = get_ident() != self._thread or stack[-1:] != [self.counter]
        if not self.left_behind:
            self.counter.__exit__(None, None, None)

    def _hold_compiler(self) -> None:
        """Where torch's compiler was not even imported, nothing is compiled."""
        if "torch._dynamo" in sys.modules:
            from torch.compiler import set_stance  # noqa: PLC0415 it imports the compiler

            self._stance = set_stance("force_eager")
            warnings.filterwarnings("ignore", _GLOBAL_HOOKS)

    def _let_compiler_go(self) -> None:
        stance, self._stance = self._stance, None
        if stance is None:
            return
        ours = next((one for one in warnings.filters if getattr(one[1], "pattern", None) == _GLOBAL_HOOKS), None)
        if ours is not None:
            warnings.filters.remove(ours)  # type: ignore[attr-defined] # it is a list
        if _stance() is stance.stance:  # if somebody else has set it since, it is theirs
            stance.__exit__(None, None, None)


def _stance() -> object:
    return sys.modules["torch._dynamo.eval_frame"]._stance  # noqa: SLF001 there is no public way to ask
