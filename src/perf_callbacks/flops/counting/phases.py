"""The phase of an operation from the Python call stack: forward, backward, recomputation or optimizer.

The innermost function with a known meaning decides. The gradient mode can't: gradients are enabled both in a
recomputation and in a backward with `create_graph`.
"""

from collections.abc import Iterable
from functools import partial
from itertools import takewhile
from types import CodeType, FrameType
from typing import Any, Literal

import torch
from torch.autograd.function import FunctionCtx

from perf_callbacks.flops.work import Phase
from perf_callbacks.kernel.process.stacks import callers

_Place = Literal["engine", "module", "function", "optimizer"]

_PLACES: dict[str, tuple[str, _Place]] = {
    "_engine_run_backward": ("torch/autograd/graph.py", "engine"),
    "_call_impl": ("torch/nn/modules/module.py", "module"),
    "recompute_fn": ("torch/utils/checkpoint.py", "module"),
    "forward": ("torch/utils/checkpoint.py", "module"),  # a reentrant checkpoint, around code that need not be a module
    "backward": ("torch/utils/checkpoint.py", "module"),
    "wrapper": ("torch/optim/optimizer.py", "optimizer"),
}
"""Functions of torch that show the phase, with their file and meaning."""


def phase(operands: Iterable[torch.Tensor] = ()) -> Phase:
    """A module in a backward is recomputation, and outside of one forward, even a teacher without gradients."""
    backward = in_backward()
    if not backward and torch.is_grad_enabled() and any(operand.requires_grad for operand in operands):
        return "forward"
    place = innermost()
    if backward and place != "optimizer":  # some optimizers step within a backward
        return "recompute" if place in {"module", "function"} else "backward"
    return "optimizer" if place == "optimizer" else "forward"


def in_backward() -> int:
    """Return a positive number for the running backward of this thread, or 0."""
    return torch._C._current_graph_task_id() + 1  # noqa: SLF001 there is no public name


def running_node() -> int | None:
    running: Any = torch._C._current_autograd_node()  # noqa: SLF001 there is no public name
    return None if running is None else int(running._sequence_nr())  # noqa: SLF001 as above


def newest_node() -> int:
    """Return the sequence number of the autograd node that this thread made last."""
    made: Any = torch.autograd._get_sequence_nr  # type: ignore[attr-defined] # noqa: SLF001 as above
    return int(made()) - 1


def in_function() -> bool:
    """Return True in the forward of a `torch.autograd.Function`, where gradients are off."""
    return any(
        frame.f_code.co_name == "forward"
        and isinstance(frame.f_locals.get("".join(frame.f_code.co_varnames[:1])), FunctionCtx)
        for frame in callers()
    )


def innermost() -> _Place | None:
    for frame in callers():
        place = _place(frame.f_code)
        if place == "engine" and torch.is_grad_enabled() and not _makes_graph(frame):
            return "function"
        if place == "optimizer" and _in_closure(frame):
            return None
        if place is not None:
            return place
    return None  # autograd runs the backward of a device in a thread of its own


def _in_closure(step: FrameType) -> bool:
    arguments, named = step.f_locals.get("args", ()), step.f_locals.get("kwargs", {})
    closure = named.get("closure", arguments[1] if len(arguments) > 1 else None)
    code = _code(closure)
    return code is not None and any(
        frame.f_code is code for frame in takewhile(lambda caller: caller is not step, callers())
    )


def _code(closure: Any) -> CodeType | None:
    while isinstance(closure, partial):
        closure = closure.func
    function = getattr(closure, "__func__", closure)
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def _makes_graph(frame: FrameType) -> bool:
    """Only `create_graph` enables gradients in a backward, except in a `torch.autograd.Function` that recomputes."""
    arguments = frame.f_locals.get("args", ())
    return len(arguments) <= _CREATE_GRAPH or bool(arguments[_CREATE_GRAPH])


_CREATE_GRAPH = 2  # place among the arguments, after the incoming gradients and `retain_graph`


def _place(code: CodeType) -> _Place | None:
    if code.co_name not in _PLACES:
        return None
    file, place = _PLACES[code.co_name]
    return place if code.co_filename.replace("\\", "/").endswith(file) else None
