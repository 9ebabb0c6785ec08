"""The moment at which the last gradient of a backward is done on this rank, before it waits for the others.

torch tells of it by a hook on a parameter. The parameter that a model names first is, as a rule, used first, and gets
its gradient last.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.stragglers.search import LEAST_SECONDS

MOST_MOMENTS = 4096
"""Moments that are kept until they are read."""

APART_SECONDS = LEAST_SECONDS
"""Least time between two looks at the time without a CPU, as one costs 6 us. A loss that is told is no shorter."""


class GradientMoments:
    """Notes these moments, and the time that the thread has been without a CPU by then."""

    def __init__(self, parameter: Any, clock: Callable[[], float]) -> None:
        self.noted: deque[tuple[float, bytes]] = deque(maxlen=MOST_MOMENTS)
        """Times by the clock, each with a line of `/proc/<pid>/schedstat`, which is empty where there is no such file.
        """
        self._file = _schedstat()
        self._hook: Any = parameter.register_post_accumulate_grad_hook(_noter(self.noted.append, clock, self._file))

    def close(self) -> None:
        """Remove the hook. A second call does nothing."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def __del__(self) -> None:
        try:  # noqa: SIM105 at the exit of the interpreter, `suppress` may be gone
            self.close()
        except Exception:  # noqa: BLE001, S110 a finalizer has nobody to tell
            pass


def last_parameter(model: nn.Module | None) -> torch.Tensor | None:
    """Return the parameter whose gradient is done last, by its place in the model.

    Numbers such as the scale of a loss come first in some models, and their gradients come early. None: there is no
    such parameter, or a lazy module has parameters without a shape.
    """
    trained = [] if model is None else [one for one in model.parameters() if one.requires_grad and one.is_leaf]
    if any(map(is_lazy, trained)):
        return None
    return next((one for one in trained if one.dim() > 1), next(iter(trained), None))


def sharded(model: nn.Module | None) -> bool:
    """Tell if ranks wait for each other in the forward: parameters are put together, or products added up, there."""
    if model is None:
        return False
    wrapped = any("FullyShardedDataParallel" in type(module).__name__ for module in model.modules())
    return wrapped or any(
        hasattr(one, "device_mesh") or hasattr(one, "ds_id") or type(one).__name__ == "FlatParameter"
        for one in model.parameters()
    )


def _noter(
    note: Callable[[tuple[float, bytes]], object], clock: Callable[[], float], file: int | None
) -> Callable[[object], None]:
    """Make the hook. It holds neither the model nor us."""
    read, tracing = getattr(os, "pread", None), torch.compiler.is_dynamo_compiling  # Windows has no `pread`
    line, due = b"", -math.inf

    def gradient_done(_parameter: object) -> None:
        nonlocal file, line, due
        if tracing():  # compiled autograd traces hooks: this one is then empty, also in a fullgraph
            return
        try:
            now = clock()
            if file is not None and read is not None and now >= due:
                line, due = read(file, 64, 0), now + APART_SECONDS
            note((now, line))
        except Exception as error:  # noqa: BLE001 the file was closed, or the thread has ended: an observer never ends the run
            let_pass(error)
            file, line = None, b""

    return gradient_done


def _schedstat() -> int | None:
    """Open the file in which Linux counts the nanoseconds that this thread was ready to run and had no CPU."""
    try:
        return os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, AttributeError) as error:  # another system, or a sandbox without it
        let_pass(error)
        return None
