"""Mark the calls of modules in a trace of torch.profiler, each by a single event.

torch.profiler itself shows modules only with Python stacks, which more than double the time of a step.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import nn

from perf_callbacks.kernel.fit.module_paths import ModulePaths
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.profiles.host import LEVELS, MODULE


def marks(model: nn.Module | None) -> Callable[[Patches], None]:
    """Hold the model weakly. After an error, the trace shows no modules; undoing the patches turns the marks off."""
    weak = None if model is None else ref(model)

    def begin(patches: Patches) -> None:
        marked = None if weak is None else weak()
        if marked is not None:
            with suppress(Exception):
                patches.replace(nn.Module, "__call__", partial(_marking, names(marked)))

    return begin


def names(model: nn.Module) -> dict[int, str]:
    """Return the event's name by the `id` of the module, down to `LEVELS` levels."""
    return {key: MODULE + path for key, path in ModulePaths(model).by_id.items() if levels(path) <= LEVELS}


def levels(path: str) -> int:
    """Count the levels of a path, without layer numbers and `*`.

    >>> levels(""), levels("lm_head"), levels("model.layers.*.mlp"), levels("layer1.0.conv1")
    (0, 1, 3, 2)
    """
    return sum([part != "*" and not part.isdigit() for part in path.split(".")]) if path else 0


def _marking(called: Mapping[int, str], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of `nn.Module.__call__` that adds an event for each call.

    A copied or pickled module would contain module hooks. Compiled code doesn't call the replacement, which makes no
    event while torch.compile traces a module.
    """
    from torch._C._profiler import _RecordFunctionFast  # noqa: PLC0415 may not exist in other versions of torch

    compiling = torch.compiler.is_compiling

    def call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        name = None if compiling() else called.get(id(self))
        if name is None:
            return original(self, *args, **kwargs)
        with _RecordFunctionFast(name):  # `record_function` costs more
            return original(self, *args, **kwargs)

    return call
