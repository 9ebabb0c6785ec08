"""The calls of a model, seen from outside."""

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.compiler import is_compiling

from perf_callbacks.session.recorder import Recorder


class ModelCalls:
    """Tells of every whole call of one model.

    By a hook, which takes the call off torch's fast path: what would be cheaper is put into the module's attributes,
    where copies of the module take it along and call the original.
    """

    def __init__(self, recorder: Recorder, model: nn.Module, called: Callable[[nn.Module], object]) -> None:
        self.model = model
        self._recorder = recorder
        self._called = called
        self.compiled: object = None
        """What the module called at the last look, where it was compiled in place."""
        recorder.patches.add(model.register_forward_pre_hook(_Hook(model, called), prepend=True).remove)
        self._watch(recorder)

    def again(self) -> None:
        """The model was compiled in place since."""
        self._recorder.attempt(self._watch)

    def _watch(self, recorder: Recorder) -> None:
        """A module that is compiled in place traces its hooks away, so that they are never called."""
        recorder.patches.replace(self.model, "_compiled_call_impl", self._telling)
        self.compiled = self.model._compiled_call_impl  # noqa: SLF001

    def _telling(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        model, called = self.model, self._called

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            called(model)
            return inner(*args, **kwargs)

        return call


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
