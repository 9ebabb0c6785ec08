"""Dispatch mode that can leave its thread's stack, and return, without a `with` block."""

import sys
from pathlib import Path
from threading import get_ident

import torch
from torch._C import _pop_torch_dispatch_stack, _push_on_torch_dispatch_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack as dispatch_modes

from perf_callbacks.flops.counting.phases import in_backward
from perf_callbacks.kernel.process.compiler import compiles, in_compiled_call
from perf_callbacks.kernel.process.stacks import callers

MOST_CALLS = 1000  # a mode that could not leave the stack at one of so many calls stays there


class StackedMode(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """Dispatch mode on one thread's stack. Compiled code runs as usual below it."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, so that compiled code stays compiled."""
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.inert = False  # True if it only passes operations on, although it may still be on the stack
        self.pushed = False  # True if it may be on a thread's stack
        self.aside: tuple[int, int] | None = None  # thread whose stack it has left for a while, and that stack's size
        self._calls_left = 0
        self._keys = 0

    def enter_stack(self) -> None:
        """The `__enter__` of torch sets flags of the process, which an interrupt or a thread could leave wrong."""
        self.pushed, self.aside = True, None
        _push_on_torch_dispatch_stack(self)
        self._keys = _dispatch_keys()

    def leave_stack(self) -> None:
        if dispatch_modes()[-1:] == [self]:
            _pop_torch_dispatch_stack(None)
        self.pushed = self in dispatch_modes()

    def step_aside(self) -> None:
        self.leave_stack()
        self.aside = get_ident(), len(dispatch_modes())
        self._keys = _dispatch_keys()

    def can_return(self) -> bool:
        as_left = self.aside is not None and len(dispatch_modes()) == self.aside[1]
        return as_left and not self._keys_are_lent()

    def step_aside_soon(self) -> None:
        """Leave the stack at the program's next call of a function.

        torch puts a mode back at the end of each operation, so it can't leave within one; one that only passes
        operations on makes short ones take four times as long. Python's profile function sees the calls in between; if
        the program has a profiler, the mode stays.
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

    At their end, torch restores the modes of the beginning. If one was removed meanwhile, operations that make tensors
    would fail, because torch would use the missing mode.
    """
    return bool(in_backward()) or torch.is_inference_mode_enabled() or in_compiled_call()


def _dispatch_keys() -> int:
    """Inference mode and `torch.func` restore these at their end."""
    return int(torch._C._dispatch_tls_local_include_set().raw_repr())  # noqa: SLF001 there is no public name


def _in_dispatch() -> bool:
    """Within these, dispatch keys may be lent, and are restored: a mode that had left would be called all the same."""
    return any(frame.f_code.co_filename.startswith(_DISPATCH) for frame in callers())


_DISPATCH = tuple(
    str(Path(torch.__file__).parent / part)
    for part in (
        "_functorch",
        "_ops.py",
        "_prims_common",
        "_refs",
        "_decomp",
        "_higher_order_ops",
        "_library",
        "_subclasses",
    )
)
