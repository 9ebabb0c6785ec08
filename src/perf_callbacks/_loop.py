"""What is watched in a plain loop: the loader, the model, the backward, the optimizer."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.compiler import is_compiling

from perf_callbacks.core.stages import Stage
from perf_callbacks.host import watch
from perf_callbacks.host.recorder import Recorder

B = TypeVar("B")

# Looking a member up in its class costs as much as recording it.
_DATA, _FORWARD, _BACKWARD, _OPTIMIZER = Stage.DATA, Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER
_OTHER, _UNDECIDED = Stage.OTHER, Stage.UNDECIDED


class LoopWatch:
    """Tells a recorder what the loop does, from the calls that every loop makes. Other threads are not listened to."""

    def __init__(self, recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.recorder = recorder
        self.steps = recorder.run.step
        self._model = model
        self._optimizer: Any = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        self._thread = get_ident()
        self._enter, self._batch = recorder.enter, recorder.batch
        self._slot: object = None
        self._evaluating = False
        self._spans = 0
        self._backwards = 0
        self._optimizing = 0

    def install(self) -> None:
        """Begin to watch. The recorder takes it all back when it closes."""
        recorder, optimizer = self.recorder, self._optimizer
        recorder.patches.add(
            optimizer.register_step_pre_hook(self._begin_step).remove,
            optimizer.register_step_post_hook(self._end_step).remove,
        )
        watch.stages(recorder, optimizer, "zero_grad", Stage.OPTIMIZER)
        recorder.patches.replace(torch.autograd, "backward", self._backward)
        if not _has_slot(self._model):
            hook = _ModelHook(self, self._model)
            recorder.patches.add(self._model.register_forward_pre_hook(hook, prepend=True).remove)
        self._watch_call(recorder)

    def resume(self) -> None:
        """The loop trains: an evaluation that was seen to begin is over."""
        if self._evaluating:
            self._evaluating = False
            self.recorder.end_span()

    def take(self, batch: object) -> None:
        """The loader has handed over a batch."""
        self._batch(batch)
        if get_ident() != self._thread:
            return
        self._backwards = self._optimizing = 0
        self._enter(_OTHER)
        if self._model._compiled_call_impl is not self._slot:  # noqa: SLF001 there is no other way to tell
            self.recorder.attempt(self._watch_call)

    def leave(self) -> None:
        """The loader has no more batches."""
        if get_ident() == self._thread:
            self.resume()
            self._enter(_OTHER)

    def wait(self) -> None:
        """The loop waits for the loader."""
        if get_ident() == self._thread:
            if self._evaluating:
                self.resume()
            self._enter(_DATA)

    @contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """The block is part of no step."""
        self.resume()
        self._enter(_OTHER)
        self._spans += 1
        self.recorder.begin_span(kind)
        try:
            yield
        finally:
            self._spans -= 1
            self.recorder.end_span()

    def call(self) -> None:
        """The model is being called."""
        if self._backwards or get_ident() != self._thread:  # checkpointing runs it again in the backward
            return
        if self._model.training or torch.is_grad_enabled() or self._spans:
            if self._evaluating:
                self.resume()
            self._enter(_FORWARD)
        elif not self._evaluating:
            self._evaluating = True
            self.recorder.begin_span("evaluation")

    def _begin_step(self, *_: object) -> None:
        self._optimizing += 1
        if get_ident() == self._thread:
            if self._evaluating:
                self.resume()
            self._enter(_OPTIMIZER)

    def _end_step(self, *_: object) -> None:
        # A `step` that calls `super().step()` has the hooks of both.
        self._optimizing = max(0, self._optimizing - 1)
        if not self._optimizing:
            self.steps += 1
            self.recorder.end_step(self.steps)

    def _backward(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.autograd.backward`, which `Tensor.backward` calls. Reentrant checkpointing calls it from inside."""

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._backwards or get_ident() != self._thread:
                return inner(*args, **kwargs)
            self._backwards += 1
            if self._evaluating:
                self.resume()
            self._enter(_BACKWARD)
            try:
                return inner(*args, **kwargs)
            finally:
                self._backwards = 0
                self._enter(_OPTIMIZER if self._optimizing else _UNDECIDED)

        return call

    def _watch_call(self, recorder: Recorder) -> None:
        """See the whole call of the model from the slot where torch puts a compiled one.

        A hook would cost more, since it takes the call off torch's fast path, and a module that is compiled in place
        traces its hooks away. What pickles or copies a module leaves this slot out.
        """
        current = self._model._compiled_call_impl  # noqa: SLF001 it has no other name
        if current is not None or _has_slot(self._model):
            recorder.patches.put(self._model, "_compiled_call_impl", self._called(current or self._model._call_impl))  # noqa: SLF001
        self._slot = self._model._compiled_call_impl  # noqa: SLF001

    def _called(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling():
                self.call()
            return inner(*args, **kwargs)

        return call


def _has_slot(model: nn.Module) -> bool:
    """Whether what stands in `_compiled_call_impl` is called, and for this module alone.

    `torch.compile(model)` hands such attributes on to `model`; `DataParallel` copies them to modules on other devices.
    """
    alone = torch.distributed.is_initialized() or torch.cuda.device_count() <= 1
    return alone and type(model).__setattr__ is nn.Module.__setattr__ and type(model).__call__ is nn.Module.__call__


class MeasuredLoader(Generic[B]):
    """A loader whose waits are measured; in all other respects the loader itself."""

    def __init__(self, loader: Iterable[B], current: Callable[[], LoopWatch | None]) -> None:
        self._loader = loader
        self._current = current

    def __iter__(self) -> Iterator[B]:
        watching = self._current()
        if watching is None:
            yield from self._loader
            return
        watching.wait()
        for batch in self._loader:
            watching.take(batch)
            held = [batch]
            del batch  # a batch on a device is freed when the loop lets go of it, not when the next one is there
            yield held.pop()
            watching.wait()
        watching.leave()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # where the loader has none, it says so itself

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _ModelHook:
    """A forward pre-hook for one module: not for its copies, and nothing to whoever loads it from a file."""

    def __init__(self, watching: LoopWatch, model: nn.Module) -> None:
        self._watching = watching
        self._model = id(model)

    def __call__(self, module: nn.Module, _args: object) -> None:
        if id(module) == self._model and not is_compiling():
            self._watching.call()

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return functools.partial(dict.get, {})

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return functools.partial, (dict.get, {})
