"""The calls of a model, seen from outside."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling

from perf_callbacks.host.recorder import Recorder

_SLOT = "_compiled_call_impl"


class ModelCalls:
    """Tells of every whole call of one model, from the slot where torch puts a compiled one.

    A hook would cost more, since it takes the call off torch's fast path, and a module that is compiled in place traces
    its hooks away. What pickles or copies a module leaves this slot out.
    """

    def __init__(self, recorder: Recorder, model: nn.Module, called: Callable[[nn.Module], object]) -> None:
        self.model = model
        self._recorder = recorder
        self._called = called
        self._ours: object = None
        if not _has_slot(model):
            recorder.patches.add(model.register_forward_pre_hook(_Hook(model, called), prepend=True).remove)
        self._watch(recorder)

    def again(self) -> None:
        """The model may have been compiled in place since."""
        if self.model._compiled_call_impl is not self._ours:  # noqa: SLF001 there is no other way to tell
            self._recorder.attempt(self._watch)

    def _watch(self, recorder: Recorder) -> None:
        current: Any = self.model._compiled_call_impl  # noqa: SLF001 it has no other name
        if current is not None or _has_slot(self.model):
            recorder.patches.put(self.model, _SLOT, self._telling(current or self.model._call_impl))  # noqa: SLF001
        self._ours = self.model._compiled_call_impl  # noqa: SLF001

    def _telling(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        model, called = self.model, self._called

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling():
                called(model)
            return inner(*args, **kwargs)

        return call


def _has_slot(model: nn.Module) -> bool:
    """Whether what stands in the slot is called, and for this module alone.

    `torch.compile(model)` hands such attributes on to `model`; `DataParallel` copies them to modules on other devices.
    """
    alone = torch.cuda.device_count() <= 1 or torch.distributed.is_initialized()
    return alone and type(model).__setattr__ is nn.Module.__setattr__ and type(model).__call__ is nn.Module.__call__


class _Hook:
    """A forward pre-hook for one module: not for its copies, and nothing to whoever loads it from a file."""

    def __init__(self, model: nn.Module, called: Callable[[nn.Module], object]) -> None:
        self._model = id(model)
        self._called = called

    def __call__(self, module: nn.Module, _args: object) -> None:
        if id(module) == self._model and not is_compiling():
            self._called(module)

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return functools.partial(dict.get, {})

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return functools.partial, (dict.get, {})
