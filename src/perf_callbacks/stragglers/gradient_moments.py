"""Times of each backward's last gradient, by a hook on the first parameter: the forward usually uses it first."""

import gc
import math
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import finalize, ref

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.stragglers.local_times import Moment
from perf_callbacks.stragglers.search import LEAST_SECONDS

MOST_MOMENTS = 4096
"""Stored `Moment` objects; a new one then replaces the oldest."""

APART_SECONDS = LEAST_SECONDS
"""Between two readings of `schedstat`, because a reading takes 6 us."""


class GradientMoments:
    """Records when a backward's last gradient is done, and how long the thread has been without a CPU so far."""

    def __init__(
        self, parameter: Any, clock: Callable[[], float], wrapper: DistributedDataParallel | None = None
    ) -> None:
        self.noted: deque[Moment] = deque(maxlen=MOST_MOMENTS)
        file = open_schedstat()
        note = _noter(self.noted.append, clock, file, None if wrapper is None else ref(wrapper))
        hooks = list[Any]()
        self.close = finalize(self, _close, hooks, file)  # first, because an interrupt may come before the hook
        """Remove the hook and close the file. Further calls do nothing."""
        hooks.append(parameter.register_post_accumulate_grad_hook(note))


def last_parameter(model: nn.Module | None) -> torch.Tensor | None:
    """Return the parameter whose gradient is last, by its order. Scalars, such as a loss's scale, get theirs early.

    None: no parameter is trained, or a lazy module has parameters without a shape.
    """
    trained = (
        []
        if model is None
        else [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.is_leaf]
    )
    if any(map(is_lazy, trained)):
        return None
    return next((parameter for parameter in trained if parameter.dim() > 1), next(iter(trained), None))


def sharded(model: nn.Module | None) -> bool:
    """Return True if ranks wait for each other in the forward, to gather parameters or to add up partial results."""
    if model is None:
        return False
    wrapped = any("FullyShardedDataParallel" in type(module).__name__ for module in model.modules())
    return wrapped or any(
        hasattr(parameter, "device_mesh") or hasattr(parameter, "ds_id") or type(parameter).__name__ == "FlatParameter"
        for parameter in model.parameters()
    )


def size_of(model: nn.Module | None) -> int:
    """Return the number of parameters; 0 if each rank has only a part of the model."""
    if model is None or sharded(model):
        return 0
    return sum([parameter.numel() for parameter in model.parameters() if not is_lazy(parameter)])


def wrapper_of(model: nn.Module | None, called: object) -> DistributedDataParallel | None:
    """Return the wrapper of a model. `called` is what training calls as the model, if known."""
    for module in (called, model):
        if isinstance(module, DistributedDataParallel):
            return module
    # In a plain loop, `measure` may get the model without its wrapper. This search takes some 25 ms.
    wrappers = [
        wrapper for wrapper in gc.get_referrers(DistributedDataParallel) if type(wrapper) is DistributedDataParallel
    ]
    return next((wrapper for wrapper in wrappers if model is not None and wrapper.module is model), None)


def _noter(
    note: Callable[[Moment], object],
    clock: Callable[[], float],
    file: int | None,
    wrapper: "ref[DistributedDataParallel] | None",
) -> Callable[[object], None]:
    """The hook holds no reference to the model or to `GradientMoments`."""
    read, tracing = getattr(os, "pread", None), torch.compiler.is_dynamo_compiling  # Windows has no `pread`
    line, due = b"", -math.inf

    def gradient_done(_parameter: object) -> None:
        nonlocal file, line, due
        if tracing():  # compiled autograd traces hooks: an empty hook breaks no graph
            return
        try:
            now = clock()
            if file is not None and read is not None and now >= due:
                line, due = read(file, 64, 0), now + APART_SECONDS
            reducing = None if wrapper is None else wrapper()
            note(Moment(now, line, reducing is not None and reducing.require_backward_grad_sync))
        except Exception as error:  # noqa: BLE001 the file was closed, or the thread has ended: an observer never ends the run
            let_pass(error)
            file, line = None, b""

    return gradient_done


def _close(hooks: list[Any], file: int | None) -> None:
    for hook in hooks:
        hook.remove()
    if file is not None:
        os.close(file)


def open_schedstat() -> int | None:
    """Linux counts there the nanoseconds for which this thread was ready to run but had no CPU."""
    try:
        return os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, AttributeError) as error:  # another system, or a sandbox without this file
        let_pass(error)
        return None
