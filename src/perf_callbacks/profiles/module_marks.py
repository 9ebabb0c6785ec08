"""Marks of modules in a trace of torch.profiler.

torch.profiler itself shows modules by Python's stacks, which more than double the time of a step. A mark is one event
around each call of a module.
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
    """Return a function that marks the calls of a model's modules until its patches are undone. Keeps no model alive.

    A model may be anything: after an error, the trace shows no modules.
    """
    weak = None if model is None else ref(model)

    def begin(patches: Patches) -> None:
        found = None if weak is None else weak()
        if found is not None:
            with suppress(Exception):
                patches.replace(nn.Module, "__call__", partial(_marking, names(found)))

    return begin


def names(model: nn.Module) -> dict[int, str]:
    """Return the name of the mark of each module that gets marks, by the id of the module."""
    return {key: MODULE + path for key, path in ModulePaths(model).by_id.items() if levels(path) <= LEVELS}


def levels(path: str) -> int:
    """Count the levels of a path. The number of a layer is no level.

    >>> levels(""), levels("lm_head"), levels("model.layers.*.mlp"), levels("layer1.0.conv1")
    (0, 1, 3, 2)
    """
    return sum([one != "*" and not one.isdigit() for one in path.split(".")]) if path else 0


def _marking(called: Mapping[int, str], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of `nn.Module.__call__` that marks the calls.

    Hooks would be part of the modules, and so of their copies and of files that a program writes meanwhile. A method of
    the class is not. Compiled code doesn't call the replacement, and code that is compiled meanwhile has no marks.
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
