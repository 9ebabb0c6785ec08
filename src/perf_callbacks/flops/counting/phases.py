"""Phase of an operation (forward, backward, recomputation or optimizer), read from the Python frames that called it.

The innermost frame with a known meaning decides. The gradient mode can't decide: in a double backward gradients are
enabled too, but nothing is recomputed.
"""

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile
from types import CodeType, FrameType
from typing import Any, Literal

import torch
from torch.autograd.function import FunctionCtx

from perf_callbacks.flops.work import Phase

_Place = Literal["engine", "module", "function", "optimizer"]

_PLACES: dict[str, tuple[str, _Place]] = {
    "_engine_run_backward": ("torch/autograd/graph.py", "engine"),
    "_call_impl": ("torch/nn/modules/module.py", "module"),
    "recompute_fn": ("torch/utils/checkpoint.py", "module"),
    "forward": ("torch/utils/checkpoint.py", "module"),  # a reentrant checkpoint, around code that need not be a module
    "backward": ("torch/utils/checkpoint.py", "module"),
    "wrapper": ("torch/optim/optimizer.py", "optimizer"),
}
"""Functions of torch, each with its file, and with the place in which its operations run."""

_known: dict[CodeType, _Place | None] = {}


def phase(operands: Iterable[torch.Tensor] = ()) -> Phase:
    """Return the phase of the operation that is being dispatched on these operands.

    A module that runs in a backward is being recomputed. A module that runs without gradients outside of a backward is
    the forward of a reentrant checkpoint or of a teacher: both are training work. Not all optimizers disable gradients,
    but an optimizer that works on `.data` has no tensor that requires gradients.
    """
    backward = in_backward()
    if not backward and torch.is_grad_enabled() and any(operand.requires_grad for operand in operands):
        return "forward"
    place = _innermost()
    if backward and place != "optimizer":  # some optimizers step within a backward
        return "recompute" if place in {"module", "function"} else "backward"
    return "optimizer" if place == "optimizer" else "forward"


def in_backward() -> int:
    """Return the number of the backward that autograd runs in this thread, from 1 on. 0: none runs."""
    return torch._C._current_graph_task_id() + 1  # noqa: SLF001 there is no public name


def node() -> int:
    """Return the number of the running node of autograd's graph or, without a backward, of the newest node."""
    running: Any = torch._C._current_autograd_node()  # noqa: SLF001 there are no public names
    made: Any = torch.autograd._get_sequence_nr  # type: ignore[attr-defined] # noqa: SLF001 as above
    return int(made() - 1 if running is None else running._sequence_nr())  # noqa: SLF001 as above


def callers() -> Iterator[FrameType]:
    """Yield the frames of this thread, from the function that iterates to the outermost."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 the only way to the caller
    while frame is not None:
        yield frame
        frame = frame.f_back


def in_function() -> bool:
    """Return True if the caller runs in the forward of a `torch.autograd.Function`, as in reentrant checkpointing.

    Gradients are always disabled there.
    """
    return any(
        frame.f_code.co_name == "forward"
        and isinstance(frame.f_locals.get("".join(frame.f_code.co_varnames[:1])), FunctionCtx)
        for frame in callers()
    )


def _innermost() -> _Place | None:
    for frame in callers():
        code = frame.f_code
        place = _known[code] if code in _known else _look(code)
        if place == "engine" and torch.is_grad_enabled() and not _makes_graph(frame):
            return "function"
        if place == "optimizer" and _in_closure(frame):
            return None
        if place is not None:
            return place
    return None  # autograd runs the backward of a device in a thread of its own


def _in_closure(step: FrameType) -> bool:
    """Return True if the call came from the closure given to an optimizer's step, not from the optimizer."""
    arguments, named = step.f_locals.get("args", ()), step.f_locals.get("kwargs", {})
    closure = named.get("closure", arguments[1] if len(arguments) > 1 else None)
    code = _code(closure)
    return code is not None and any(frame.f_code is code for frame in takewhile(lambda one: one is not step, callers()))


def _code(closure: Any) -> CodeType | None:
    """Return the code that a callable runs: a function, a method, a partial, an object with `__call__`."""
    while isinstance(closure, partial):
        closure = closure.func
    function = getattr(closure, "__func__", closure)
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def _makes_graph(frame: FrameType) -> bool:
    """Return True if a backward will itself be differentiated.

    Only then does autograd enable gradients in the backward. A function's own backward may enable gradients too, to
    recompute a part of the forward.
    """
    arguments = frame.f_locals.get("args", ())
    return len(arguments) <= _CREATE_GRAPH or bool(arguments[_CREATE_GRAPH])


_CREATE_GRAPH = 2  # place among the arguments, after the incoming gradients and `retain_graph`


def _look(code: CodeType) -> _Place | None:
    file, place = _PLACES.get(code.co_name, ("", None))
    if not code.co_filename.replace("\\", "/").endswith(file):
        place = None
    if len(_known) > 10_000:  # noqa: PLR2004 code may be made at run time
        _known.clear()
    _known[code] = place
    return place
