"""Who asked for an operation: forward, backward, recomputation or optimizer, read off the Python frames that led to it.

Whether gradients are enabled doesn't tell: in a double backward they are, though nothing is recomputed. The innermost
frame that means something decides.
"""

import sys
from types import CodeType, FrameType
from typing import Literal

import torch

from perf_callbacks.core.work import Phase

_Place = Literal["engine", "module", "function", "optimizer"]

_PLACES: dict[str, tuple[str, _Place]] = {
    "_engine_run_backward": ("torch/autograd/graph.py", "engine"),
    "_call_impl": ("torch/nn/modules/module.py", "module"),
    "recompute_fn": ("torch/utils/checkpoint.py", "module"),
    "forward": ("torch/utils/checkpoint.py", "module"),  # a reentrant one, around what need not be a module
    "backward": ("torch/utils/checkpoint.py", "module"),
    "wrapper": ("torch/optim/optimizer.py", "optimizer"),
}
"""Functions of torch, their files, and what it means to be called by them."""

_known: dict[CodeType, _Place | None] = {}


def phase() -> Phase:
    """The phase of the operation that is being dispatched.

    Run in a backward, a module is being run again. Run without gradients, outside of a backward, it is the forward of a
    reentrant checkpoint, or of a teacher: work that the training asks for.
    """
    in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 there is no public name
    if not in_backward and torch.is_grad_enabled():
        return "forward"
    place = _innermost()
    if in_backward:
        return "recompute" if place in {"module", "function"} else "backward"
    return "optimizer" if place == "optimizer" else "forward"


def _innermost() -> _Place | None:
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 the one way to the caller
    while frame is not None:
        code = frame.f_code
        place = _known[code] if code in _known else _look(code)
        if place == "engine" and torch.is_grad_enabled() and not _makes_graph(frame):
            return "function"
        if place is not None:
            return place
        frame = frame.f_back
    return None  # autograd runs a device's backward in a thread of its own


def _makes_graph(frame: FrameType) -> bool:
    """Whether a backward is to be differentiated in its turn. In one that is not, gradients are off.

    If they are on there, a function's own backward has switched them on, to run again what it wants to differentiate.
    """
    arguments = frame.f_locals.get("args", ())
    return len(arguments) <= _CREATE_GRAPH or bool(arguments[_CREATE_GRAPH])


_CREATE_GRAPH = 2  # after the gradients that come in, and whether to keep the graph


def _look(code: CodeType) -> _Place | None:
    file, place = _PLACES.get(code.co_name, ("", None))
    if not code.co_filename.replace("\\", "/").endswith(file):
        place = None
    if len(_known) > 10_000:  # noqa: PLR2004 code may be made at run time
        _known.clear()
    _known[code] = place
    return place
