"""Hook that marks each call of a model as the beginning of the stage `forward`."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from threading import get_ident
from types import SimpleNamespace
from typing import Any
from weakref import finalize, ref

from torch import get_autocast_dtype, is_autocast_enabled, is_grad_enabled, nn
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.process.backward import Loop
from perf_callbacks.kernel.process.graphs import FIRST, next_start
from perf_callbacks.kernel.process.patches import Replacement

Inputs = Callable[[tuple[Any, ...], dict[str, Any]], object]
"""Gets the arguments of each model call in the stage `forward`."""

_FORWARD = Stage.FORWARD  # looking up an enum's member costs as much as writing the mark


class ModelCalls:
    """Marks every call of one model as the beginning of the stage `forward`, in a forward pre-hook.

    A hook costs time, because torch calls a module without hooks faster. A replaced attribute would cost less, but
    copies of the module would call the original one. The hook is a bound method, which Python calls faster than
    `__call__`. Copies and pickles of the module contain a hook that does nothing.
    """

    model: Any = None
    seen = False  # in training or in an evaluation

    def __init__(self, recorder: Recorder, loop: Loop, model: nn.Module, inputs: Inputs | None) -> None:
        self.model = model
        self._recorder, self._loop, self._inputs = recorder, loop, inputs
        self._trained = False
        self.compiled: object = None  # last seen `_compiled_call_impl` of the module
        self._hook: RemovableHandle | None = None
        recorder.patches.add(self._unhook)
        compiling = Replacement(nn.Module, "compile", self._compiling(nn.Module.compile))
        recorder.patches.add(compiling.put_back)
        finalize(self, compiling.put_back).atexit = False  # the fit may be dropped
        self._watch(recorder)

    def again(self) -> None:
        self._recorder.attempt(self._watch)

    def _watch(self, recorder: Recorder) -> None:
        """The hook would be compiled too: torch compiles an `nn.Sequential` in place only if it has hooks."""
        recorder.patches.replace(self.model, "_compiled_call_impl", self._marking)
        self.compiled = self.model._compiled_call_impl  # noqa: SLF001
        if self.compiled is not None:
            self._unhook()
        elif self._hook is None:
            self._hook = self.model.register_forward_pre_hook(self.see, prepend=True, with_kwargs=True)

    def _unhook(self) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def _compiling(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Watch the compiled call as soon as there is one: its first call may come before the next batch."""
        calls = ref(self)  # a method of all modules must keep no fit alive

        @functools.wraps(inner)
        def compile(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: A001 torch's name
            result = inner(module, *args, **kwargs)
            watched = calls()
            if watched is not None and watched.model is module:
                watched.again()
            return result

        return compile

    def _marking(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        model, see = self.model, self.see

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            see(model, args, kwargs)
            return inner(*args, **kwargs)

        return call

    def see(  # noqa: C901 a call is a frame in each step
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        if is_dynamo_compiling() or module is not self.model:  # the compiler takes `is_dynamo_compiling` for True
            return
        loop = self._loop
        if loop.in_backward or get_ident() != loop.thread:  # checkpointing runs the model again in the backward
            return
        try:
            # A model that was called in training once may change its mode: with gradients, the model trains.
            if loop.evaluating or loop.late or not (self._trained and is_grad_enabled()):
                self._trained, self.seen = module.training and is_grad_enabled(), True
                kind = self._recorder.device.type
                self._recorder.autocast = get_autocast_dtype(kind) if is_autocast_enabled(kind) else None
                if not loop.call(module):
                    return
            pairs = loop.tape.pairs
            if not pairs or pairs[-2] is not _FORWARD:  # a model may be called a million times before a step ends
                loop.tape.write((_FORWARD, loop.clock()))
            if not loop.spans:
                loop.ran = True
                if loop.several:
                    loop.takes((args, kwargs))
                elif loop.waiting:
                    loop.starts.append(next_start(len(loop.starts)) if loop.starts else FIRST)
                    loop.engine.batches.append(loop.waiting.pop(0)[0])
            if self._inputs is not None:
                self._inputs(args, kwargs or {})
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            loop.fail(error)

    def __deepcopy__(self, memo: object) -> "ModelCalls":
        return ModelCalls.__new__(ModelCalls)  # belongs to no module

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle a namespace whose `see` does nothing: the process that loads it may not have this package."""
        return SimpleNamespace, (), {"see": nullcontext().__exit__}
