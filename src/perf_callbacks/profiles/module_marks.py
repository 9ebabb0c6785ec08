"""Mark the calls of modules in a trace of torch.profiler.

torch.profiler itself shows modules only with Python stacks, but recording stacks more than doubles the time of a step.
Our mark is a single trace event around each call of a module.
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
    """Return a function that turns on the marks of a model's modules.

    The returned function takes a `Patches` object as its argument, and uses it to replace `nn.Module.__call__`. Undoing
    the patches turns the marks off. The function holds only a weak reference to the model. If an error occurs, the
    trace shows no modules.
    """
    weak = None if model is None else ref(model)

    def begin(patches: Patches) -> None:
        found = None if weak is None else weak()
        if found is not None:
            with suppress(Exception):
                patches.replace(nn.Module, "__call__", partial(_marking, names(found)))

    return begin


def names(model: nn.Module) -> dict[int, str]:
    """Return the name of each module's trace event. The key is the `id` of the module.

    Modules more than `LEVELS` levels deep are left out.
    """
    return {key: MODULE + path for key, path in ModulePaths(model).by_id.items() if levels(path) <= LEVELS}


def levels(path: str) -> int:
    """Count the levels of a module path. Layer numbers and `*` don't count.

    >>> levels(""), levels("lm_head"), levels("model.layers.*.mlp"), levels("layer1.0.conv1")
    (0, 1, 3, 2)
    """
    return sum([one != "*" and not one.isdigit() for one in path.split(".")]) if path else 0


def _marking(called: Mapping[int, str], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of `nn.Module.__call__` that adds an event for each call to the trace.

    Module hooks are not used, because a copied or pickled module would contain the hooks. Compiled code doesn't call
    the replacement. While torch.compile traces a module, the replacement makes no event.
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
