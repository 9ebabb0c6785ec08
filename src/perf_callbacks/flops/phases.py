"""Who asked for an operation: forward, backward, recomputation or optimizer, read off the Python frames that led to it.

Whether gradients are enabled doesn't tell: in a double backward they are, though nothing is recomputed. The innermost
frame that means something decides.
"""

import sys
from types import CodeType, FrameType
from typing import Literal

import torch

from perf_callbacks.core.work import Phase

_Place = Literal["engine", "module", "optimizer"]

_PLACES: dict[tuple[str, str], _Place] = {
    ("torch/autograd/graph.py", "_engine_run_backward"): "engine",
    ("torch/nn/modules/module.py", "_call_impl"): "module",
    ("torch/utils/checkpoint.py", "recompute_fn"): "module",
    ("torch/optim/optimizer.py", "wrapper"): "optimizer",
}

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
        return "recompute" if place == "module" else "backward"
    return "optimizer" if place == "optimizer" else "forward"


def _innermost() -> _Place | None:
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 the one way to the caller
    while frame is not None:
        code = frame.f_code
        place = _known[code] if code in _known else _look(code)
        if place is not None:
            return place
        frame = frame.f_back
    return None  # autograd runs a device's backward in a thread of its own


def _look(code: CodeType) -> _Place | None:
    path = code.co_filename.replace("\\", "/")
    place = next(
        (place for (file, name), place in _PLACES.items() if code.co_name == name and path.endswith(file)), None
    )
    if len(_known) > 10_000:  # noqa: PLR2004 code may be made at run time
        _known.clear()
    _known[code] = place
    return place
