"""Facts about torch's compiler. Nothing here changes what it does.

A compiled program must stay compiled while it is measured: eager code rounds and draws random numbers differently,
issues collectives in another order, and may need far more memory.
"""

import re
import sys
import warnings
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from perf_callbacks.kernel.process.stacks import callers

RUNS_UNDER_MODES = hasattr(TorchDispatchMode, "ignore_compile_internals")
"""Compiled code runs as usual below a `TorchDispatchMode` that ignores it. In torch 2.6, compiled code with random
numbers raises an error below any mode, and code that is compiled below a mode stays eager."""


def in_compiled_call() -> bool:
    """Return True if a call of compiled code is under way in this thread.

    At its end, torch restores the thread's dispatch keys, which also decide whether a `TorchDispatchMode` is active: a
    mode that was pushed during the call becomes inactive, and after a mode was popped, every operation fails.
    """
    eval_frame: Any = sys.modules.get("torch._dynamo.eval_frame")
    return eval_frame is not None and any(frame.f_code.co_filename == eval_frame.__file__ for frame in callers())


def anything_compiled() -> bool:
    compiler: Any = sys.modules.get("torch._dynamo.utils")
    return compiler is not None and bool(compiler.counters["stats"].get("unique_graphs"))


def compiles() -> bool:
    """Return True if torch.compile has compiled code in this process, or is set up to."""
    return anything_compiled() or bool(_backends())


def generates_code() -> bool:
    """True: code may compute what the dispatcher doesn't see. Not `eager`, torch's backend of flex attention."""
    return anything_compiled() and _backends() != ["eager"]


def _backends() -> list[str]:
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(compiler, "cached_backends", {}).values()
    return sorted({getattr(backend, "compiler_name", "") for backend in backends if callable(backend)})


def on_compilation(callback: Any) -> None:
    """Call `callback` when the compiler begins to trace a function, before it looks at hooks.

    For hooks on all modules, which the callback removes. Until then, torch's warning about such hooks is not shown: a
    program may be compiled, and called, while they are there. A second call does nothing.
    """
    compiler: Any = sys.modules.get("torch._dynamo.callback")
    if compiler is not None and callback not in compiler.callback_handler.start_callbacks:
        compiler.callback_handler.register_start_callback(callback)
        # `filterwarnings` would make Python forget which warnings it has shown, and show all once more
        _filters[callback] = warnings.filters  # type: ignore[assignment] # it is a list
        _filters[callback].insert(0, _FILTER)


def off_compilation(callback: Any) -> None:
    """Undo `on_compilation`. A second call does nothing.

    Never called by `callback` itself: torch would then skip the next callback, which may be the program's.
    """
    compiler: Any = sys.modules.get("torch._dynamo.callback")
    if compiler is not None and callback in compiler.callback_handler.start_callbacks:
        # `warnings.catch_warnings` may have begun, or have ended, since
        current: Any = warnings.filters
        earlier = _filters.pop(callback, current)
        for filters in (current,) if earlier is current else (current, earlier):
            if _FILTER in filters:
                filters.remove(_FILTER)
        compiler.callback_handler.remove_start_callback(callback)


_filters: dict[Any, list[Any]] = {}
"""The list of `warnings` to which each callback has added `_FILTER`."""

_FILTER = (
    "ignore",
    re.compile("Using .torch.compile.module.. when there are global hooks on modules"),
    Warning,
    None,
    0,
)
