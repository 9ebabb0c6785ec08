"""What is watched in an Accelerate loop beyond what every loop has: several models, optimizers and loaders."""

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any, TypeVar

import torch
from torch import is_grad_enabled, nn

from perf_callbacks.core.batches import Batch
from perf_callbacks.core.marks import BACK, BEGIN
from perf_callbacks.core.stages import Stage
from perf_callbacks.doors import methods
from perf_callbacks.doors.loop_watch import LoopWatch
from perf_callbacks.doors.subclasses import put_on, watched
from perf_callbacks.session.recorder import Recorder

T = TypeVar("T")

MOST_PENDING = 1024
"""Batches of one loader that may wait for being trained on."""

# Looking a member up in its class costs as much as recording it.
_DATA, _FORWARD, _OPTIMIZER, _OTHER = Stage.DATA, Stage.FORWARD, Stage.OPTIMIZER, Stage.OTHER


class AcceleratedWatch(LoopWatch):
    """Tells training from evaluation by what the loop does, since any prepared loader may serve either.

    A batch counts once a backward follows it. What is fetched, or called without gradients, while no model is in
    training mode belongs to an evaluation, until a batch to train on is fetched, or a model trained.
    """

    def __init__(
        self,
        recorder: Recorder,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        before: tuple[int, Batch] | None = None,
        *,
        kind: type = object,
        prepared: Iterable[object] = (),
    ) -> None:
        super().__init__(recorder, model, optimizer)
        self._kind, self._prepared = kind, prepared
        self._models = [model]
        self._trained: set[int] = set()  # models that were called in training
        self._decisive = self._models  # whose mode tells whether there is training: those trained, else all
        self._read = recorder.reader.read
        self._pending: dict[int, deque[Batch]] = {}  # by loader
        self._doubtful = before  # the last batch that seemed to be for an evaluation, and its loader
        self._learned = False
        self._always: set[int] = set()  # loaders that models in evaluation mode are trained from

    def install(self) -> None:
        """Begin to watch. The recorder takes it all back when it closes."""
        super().install()
        _know_signature(self._optimizer)
        self._watch_accelerator(self._kind)
        for one in self._prepared:
            self.add(one)

    def add(self, prepared: object) -> None:
        """Something more was prepared: its time goes where it belongs. Only the first optimizer's steps count."""
        if prepared is self._model or self.counts(prepared):
            return
        if isinstance(prepared, nn.Module):
            self._add_model(prepared)
        elif isinstance(prepared, torch.optim.Optimizer):
            self._add_optimizer(getattr(prepared, "optimizer", prepared))
        elif hasattr(prepared, "get_last_lr"):
            self._add_scheduler(prepared)

    def _add_scheduler(self, scheduler: Any) -> None:
        step = functools.partial(self._schedule, getattr(scheduler, "gradient_state", None))
        if "step" in vars(scheduler):  # a torch one that accelerate did not wrap replaces it on itself
            self.recorder.patches.replace(scheduler, "step", step)
        else:
            kind = type(scheduler)
            self.recorder.patches.add(put_on(scheduler, watched(kind, {"step": step(kind.step)})))

    def _add_model(self, model: nn.Module) -> None:
        self._models.append(model)
        self._watch_model(model)

    def _add_optimizer(self, optimizer: Any) -> None:
        self.recorder.patches.add(
            optimizer.register_step_pre_hook(lambda *_: self.turn(_OPTIMIZER)).remove,
            optimizer.register_step_post_hook(lambda *_: self.turn(_OTHER)).remove,
        )
        methods.stages(self.recorder, optimizer, "zero_grad", _OPTIMIZER)
        _know_signature(optimizer)

    def _watch_accelerator(self, kind: type) -> None:
        """Watch what the loop calls instead of torch, in the class that the accelerator has meanwhile."""
        recorder = self.recorder
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            methods.stages(recorder, kind, name, _OPTIMIZER)
        for name in ("save_state", "save_model", "save", "get_state_dict"):
            if hasattr(kind, name):
                recorder.patches.replace(kind, name, self._checkpoint)

    def counts(self, optimizer: Any) -> bool:
        """Whether it is this optimizer whose steps count."""
        return self._optimizer is getattr(optimizer, "optimizer", optimizer)

    @property
    def training(self) -> bool:
        """Whether a model is in training mode: of those that were trained, else of all."""
        return any(model.training for model in self._decisive)

    def call(self, model: nn.Module) -> None:
        """A model is being called."""
        if self._backwards or get_ident() != self._thread:  # checkpointing runs it again in the backward
            return
        try:
            if self._late:
                self._begin_late()
            if not (model.training and is_grad_enabled()):
                self._call_untrained(model)
                return
            if id(model) not in self._trained:
                self._trained.add(id(model))
                self._decisive = [one for one in self._models if id(one) in self._trained]
            if self._evaluating:
                self.turn(_FORWARD)
            else:
                self._tape.write((_FORWARD, self._clock()))
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.recorder.fail(error)

    def _call_untrained(self, model: nn.Module) -> None:
        gradients = is_grad_enabled()
        if self._evaluating:
            self._doubtful = self._doubtful if gradients else None
        # A teacher is in evaluation mode while its student trains.
        elif gradients or self._spans or model.training or (id(model) not in self._trained and self.training):
            self.turn(_FORWARD)
        else:
            self.evaluate()

    def fetch(self, loader: object) -> None:
        """The loop asks a loader for a batch."""
        if get_ident() != self._thread:
            return
        try:
            if self._late:
                self._begin_late()
            if not (is_grad_enabled() and (self._decisive[0].training or self.training or id(loader) in self._always)):
                self.evaluate()
            elif self._evaluating:
                self.turn(_DATA)
            else:
                self._tape.write((_DATA, self._clock()))
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.recorder.fail(error)

    def fetched(self, loader: object, batch: object) -> None:
        """A loader has handed over a batch. It is read now: the loop may take it apart before it trains on it."""
        try:
            found = self._read(batch)
            if get_ident() != self._thread:
                self.recorder.add(found)
                return
            self._backwards = self._optimizing = 0
            if self._evaluating:
                self._doubtful = id(loader), found
                return
            self._wait(id(loader), found)
            self._tape.write((_OTHER, self._clock()))
            for calls in self._calls:
                if calls.model._compiled_call_impl is not calls.compiled:  # noqa: SLF001 there is no other way to tell
                    calls.again()
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.recorder.fail(error)

    def _wait(self, loader: int, batch: Batch) -> None:
        """A batch waits for being trained on."""
        if self._learned:  # what was not trained on by now was skipped
            self._learned = False
            self._pending.clear()
        if loader in self._pending:
            self._pending[loader].append(batch)
        else:
            self._pending[loader] = deque((batch,), MOST_PENDING)

    def exhausted(self) -> None:
        """A loader has no more."""
        try:
            if not self._evaluating:
                self.turn(_OTHER)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.recorder.fail(error)

    def leave(self) -> None:
        """The loop leaves a loader, and may be over."""
        self.recorder.leave()

    def begins_backward(self) -> bool:
        """A backward begins: of each loader, the last batch that was fetched is trained on now."""
        if not self._backwards and get_ident() == self._thread:
            try:
                self._count()
            except Exception as error:  # noqa: BLE001 an observer never ends the run
                self.recorder.fail(error)
        return super().begins_backward()

    def _count(self) -> None:
        self._learned, counted = True, False
        for waiting in self._pending.values():
            if waiting:
                self.recorder.add(waiting.pop())
                counted = True
        if self._doubtful is not None and not counted:
            self._always.add(self._doubtful[0])
            self.recorder.add(self._doubtful[1])
        self._doubtful = None

    def _schedule(self, gradients: Any, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a scheduler's step, which does nothing between the micro-batches of one step."""

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not getattr(gradients, "sync_gradients", True):
                return inner(*args, **kwargs)
            self.recorder.enter(BEGIN[_OPTIMIZER])
            try:
                return inner(*args, **kwargs)
            finally:
                self.recorder.enter(BACK)

        return call

    def _checkpoint(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            if get_ident() != self._thread or not self.recorder.active:
                return inner(*args, **kwargs)
            with self.span("checkpoint"):
                return inner(*args, **kwargs)

        return call


def _know_signature(optimizer: object) -> None:
    """Accelerate asks for the signature of `zero_grad` before each call: what we put there has it at hand.

    It is kept one layer below, since who wraps a method in turn takes over its attributes, but not its `self`.
    """
    ours: Any = getattr(vars(optimizer).get("zero_grad"), "__func__", None)
    inner = getattr(ours, "__wrapped__", None)
    if inner is not None:
        known: Any = functools.partial(inner)
        known.__signature__ = inspect.signature(inner)
        ours.__wrapped__ = known
