"""Dispatch mode that can leave its thread's stack of modes, and return, without a `with` block."""

import sys
from pathlib import Path
from threading import get_ident

import torch
from torch._C import _pop_torch_dispatch_stack, _push_on_torch_dispatch_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack as dispatch_modes

from perf_callbacks.flops.counting.phases import in_backward
from perf_callbacks.kernel.process.compiler import compiles, in_compiled_call
from perf_callbacks.kernel.process.stacks import callers

MOST_CALLS = 1000
"""A mode that can't leave the stack at one of so many calls of functions stays there."""


class StackedMode(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """Dispatch mode on the stack of one thread. Compiled code runs as usual below the mode."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, so that compiled code stays compiled."""
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.inert = False
        """True if the mode only passes operations on, although it may still be on the stack."""
        self.pushed = False
        """True if the mode may be on a thread's stack."""
        self.aside: tuple[int, int] | None = None
        """Thread whose stack the mode has left for a while, and the size of the stack without the mode."""
        self._calls_left = 0
        self._keys = 0

    def enter_stack(self) -> None:
        """Push the mode onto this thread's stack.

        torch's own `__enter__` is not used, because it sets flags for the whole process. An interrupt or a second
        thread could leave the flags of the process wrong.
        """
        self.pushed, self.aside = True, None
        _push_on_torch_dispatch_stack(self)
        self._keys = _dispatch_keys()

    def leave_stack(self) -> None:
        """Pop the mode off this thread's stack, if the mode is on top."""
        if dispatch_modes()[-1:] == [self]:
            _pop_torch_dispatch_stack(None)
        self.pushed = self in dispatch_modes()

    def step_aside(self) -> None:
        """Leave this thread's stack for a while."""
        self.leave_stack()
        self.aside = get_ident(), len(dispatch_modes())
        self._keys = _dispatch_keys()

    def can_return(self) -> bool:
        """Return True if the stack is as the mode left it."""
        as_left = self.aside is not None and len(dispatch_modes()) == self.aside[1]
        return as_left and not self._keys_are_lent()

    def step_aside_soon(self) -> None:
        """Leave the stack at the program's next call of a function.

        torch puts a mode back onto the stack at the end of each operation, so the mode can't leave within one. A mode
        that stays only to pass operations on makes short operations take four times as long. Python's profile function
        sees the calls in between. A profiler of the program has precedence: the mode then stays.
        """
        if sys.getprofile() is None and not compiles():
            self._calls_left = MOST_CALLS
            sys.setprofile(self._called)

    def end_profile(self) -> None:
        if sys.getprofile() == self._called:
            sys.setprofile(None)

    def _called(self, *_: object) -> None:
        self._calls_left -= 1
        between = dispatch_modes()[-1:] == [self] and not self._keys_are_lent()
        if between or self._calls_left <= 0:
            sys.setprofile(None)
        if between:
            self.step_aside()

    def _keys_are_lent(self) -> bool:
        return modes_are_lent() or _dispatch_keys() != self._keys or _in_dispatch()


def modes_are_lent() -> bool:
    """Return True in a backward, a compiled call or inference mode.

    At their end, torch restores the dispatch modes of the beginning. If a mode were removed before the end, operations
    that make tensors would fail, because torch would use the missing mode.
    """
    return bool(in_backward()) or torch.is_inference_mode_enabled() or in_compiled_call()


def _dispatch_keys() -> int:
    """Return the dispatch keys that this thread includes. Inference mode and `torch.func` restore them at their end."""
    return int(torch._C._dispatch_tls_local_include_set().raw_repr())  # noqa: SLF001 there is no public name


def _in_dispatch() -> bool:
    """Return True within Python code that implements operations or transforms of functions.

    It may have lent the thread's dispatch keys, and restores them: a mode that had left would be called all the same.
    """
    return any(frame.f_code.co_filename.startswith(_DISPATCH) for frame in callers())


_DISPATCH = tuple(
    str(Path(torch.__file__).parent / part)
    for part in ("_functorch", "_ops.py", "_prims_common", "_refs", "_decomp", "_higher_order_ops", "_library")
)
