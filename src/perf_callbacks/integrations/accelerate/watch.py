"""Watched calls of a loop with Accelerate, which may use several models, optimizers and loaders."""

import functools
import inspect
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

import torch
from torch import is_grad_enabled, nn

from perf_callbacks.flops.counting.phases import in_function
from perf_callbacks.integrations import methods
from perf_callbacks.integrations.accelerate.prepared import PreparedObjects
from perf_callbacks.integrations.accelerate.subclasses import put_on, watched
from perf_callbacks.integrations.loop.watch import LoopWatch
from perf_callbacks.kernel.batches.reader import ROWS, UNREADABLE, Batch, shape_of
from perf_callbacks.kernel.batches.waiting import UNKNOWN, Waiting, identify, same, take
from perf_callbacks.kernel.engine.marks import BACK, BEGIN
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process.graphs import FIRST, Start, next_start, reached

T = TypeVar("T")

MOST_PENDING = 1024  # waiting batches of one loader: fetched, but not used yet

# Looking up an enum's member costs as much as writing the mark.
_DATA, _BACKWARD, _OPTIMIZER = Stage.DATA, Stage.BACKWARD, Stage.OPTIMIZER
_OTHER, _UNDECIDED = Stage.OTHER, Stage.UNDECIDED


class AcceleratedWatch(LoopWatch):
    """Watches a loop with Accelerate, whose calls tell training from evaluation, even with a single loader.

    A batch counts when a backward trains on it. An evaluation begins with a fetch while gradients are off or no model
    is in training mode, or with a call of a model in evaluation mode without gradients, unless it is the teacher of a
    student that trains. It ends with a fetch for training, or a call of a model in training mode.
    """

    marks_backward = False  # `begins_backward` also counts batches

    def __init__(
        self, recorder: Recorder, prepared: PreparedObjects, before: tuple[int, Batch] | None, *, kind: type
    ) -> None:
        model = prepared.models[0]
        super().__init__(recorder, model, prepared.optimizers[0])
        self._kind, self._prepared = kind, prepared
        self._models = [model]
        self._trained: set[int] = set()  # models that were called in training
        self._decisive = self._models  # models whose mode decides if the loop trains: trained models, else all
        self._reader = recorder.reader
        self._pending: dict[int, list[Waiting]] = {}  # by loader: batches that no model was called with, as far as seen
        self._taken: dict[int, list[tuple[Start, Batch]]] = {}  # by loader: batches that a model was called with
        self._start = FIRST  # of the batch that was fetched last, if a model is called with it
        self._ahead = False  # waiting batches were fetched before the model's call with an earlier batch
        self._doubtful = before  # the last batch that seemed to be for an evaluation, and its loader
        self._learned = False
        self._always: set[int] = set()  # loaders whose batches train models in evaluation mode

    def install(self) -> None:
        super().install()
        _know_signature(self._optimizer)
        self._watch_accelerator(self._kind)
        for member in self._prepared:
            self.add(member)

    def add(self, prepared: object) -> None:
        """Only the steps of the first prepared optimizer count."""
        if prepared is self._model or self.counts(prepared):
            return
        if isinstance(prepared, nn.Module):
            self._models.append(prepared)
            self._watch_model(prepared)
        elif isinstance(prepared, torch.optim.Optimizer):
            self._add_optimizer(getattr(prepared, "optimizer", prepared))
        elif hasattr(prepared, "get_last_lr"):
            self._add_scheduler(prepared)

    def _add_scheduler(self, scheduler: Any) -> None:
        step = functools.partial(self._schedule, getattr(scheduler, "gradient_state", None))
        if "step" in vars(scheduler):  # torch's schedulers replace `step` on themselves, if accelerate didn't wrap
            self.recorder.patches.replace(scheduler, "step", step)
        else:
            kind = type(scheduler)
            self.recorder.patches.add(put_on(scheduler, watched(kind, {"step": step(kind.step)})))

    def _add_optimizer(self, optimizer: Any) -> None:
        self.recorder.patches.add(
            optimizer.register_step_pre_hook(functools.partial(self.turn, _OPTIMIZER)).remove,
            optimizer.register_step_post_hook(functools.partial(self.turn, _OTHER)).remove,
        )
        methods.stages(self.recorder, optimizer, "zero_grad", _OPTIMIZER)
        _know_signature(optimizer)

    def _watch_accelerator(self, kind: type) -> None:
        recorder = self.recorder
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            methods.stages(recorder, kind, name, _OPTIMIZER)
        for name in ("save_state", "save_model", "save", "get_state_dict"):
            recorder.patches.replace(kind, name, self._checkpoint)

    def counts(self, optimizer: Any) -> bool:
        return self._optimizer is getattr(optimizer, "optimizer", optimizer)

    @property
    def training(self) -> bool:
        """Once a model was trained, only trained ones decide."""
        return any(model.training for model in self._decisive)

    def call(self, model: nn.Module) -> bool:
        self._begin_late()
        gradients = is_grad_enabled()
        if model.training and gradients:
            if id(model) not in self._trained:
                self._trained.add(id(model))
                self._decisive = [watched_model for watched_model in self._models if id(watched_model) in self._trained]
            self._end_evaluation()
            return True
        if self.evaluating:
            self._doubtful = self._doubtful if gradients else None
            return False
        if model.training and not (gradients or self.spans) and self._samples():
            return False
        # A teacher is in evaluation mode while its student trains.
        if gradients or self.spans or model.training or (id(model) not in self._trained and self.training):
            return True
        self.evaluate()
        return False

    def _samples(self) -> bool:
        return self._learned and not in_function()

    def fetch(self, loader: object) -> None:
        if get_ident() != self.thread:
            return
        try:
            trains = is_grad_enabled() and self._decisive[0].training
            if trains and not (self.evaluating or self.late):
                self.tape.write((_DATA, self.clock()))
                return
            self._begin_late()
            if trains or (is_grad_enabled() and (self.training or id(loader) in self._always)):
                self.turn(_DATA)
            else:
                self.evaluate()
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def fetched(self, loader: object, batch: Any) -> None:  # noqa: C901 a call is a frame in each step
        """Read a batch at once, because the loop may change it before the training."""
        try:
            reader = self._reader
            reading = None  # as `BatchReader.read`, without its frame
            if reader.by_shapes:
                try:
                    reading = reader.by_shapes.get(
                        tuple(map(shape_of, batch))
                        if type(batch) in ROWS
                        else (*batch.keys(), *map(shape_of, batch.values()))
                    )
                except UNREADABLE as error:
                    let_pass(error)
            if reading is None:
                reading = reader.read(batch)
            for calls in self._calls:
                if calls.model._compiled_call_impl is not calls.compiled:  # noqa: SLF001 torch has no other way to tell
                    calls.again()
            if get_ident() != self.thread:
                self.recorder.add(reading)
                return
            self.in_backward, self.optimizing = False, 0
            if self.evaluating:
                self._doubtful = id(loader), reading
                return
            if self._learned:  # a batch not trained on by now was skipped, or fetched early
                self._learned = False
                self._taken.clear()
                if not self._ahead:
                    self._pending.clear()
                self._ahead = False
            waiting = self._pending.setdefault(id(loader), [])
            if waiting or len(self._pending) > 1:
                self._wait_beside(id(loader), batch, reading)
            else:
                waiting.append((reading, ()))
            self.ran = False
            self.tape.write((_OTHER, self.clock()))
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def leave(self, *, exhausted: bool = False) -> None:
        """The end of a loader that serves an evaluation is ignored."""
        with guard(self.fail):
            if exhausted and self.evaluating:
                return
            if exhausted:
                self.turn(_OTHER)
            self.recorder.leave(exhausted=exhausted)

    def backward(self, inner: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if self.in_backward or get_ident() != self.thread or not self.recorder.active:
            return inner(*args, **kwargs)
        self.in_backward = True
        try:
            if self._doubtful is None and not (self.several or self._taken):  # as in `_count`, without its frame
                self._learned = True
                engine = self.engine
                for waiting in self._pending.values():
                    if waiting:  # as `Recorder.add`, without its frame
                        reading, _ = waiting.pop()
                        if not engine.open_spans:
                            engine.batches.append(reading)
                if len(engine.batches) >= engine.relieve_at:
                    engine.relieve()
            else:
                self._count([argument for argument in (*args, *kwargs.values()) if hasattr(argument, "grad_fn")])
            if self.evaluating or self.late:
                self.turn(_BACKWARD)
            else:
                self.tape.write((_BACKWARD, self.clock()))
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)
        try:
            return inner(*args, **kwargs)
        finally:
            self.in_backward = False
            try:
                self.tape.write((_OPTIMIZER if self.optimizing else _UNDECIDED, self.clock()))
            except Exception as error:  # noqa: BLE001 as above
                self.fail(error)

    def begins_backward(self, root: object = None) -> None:
        try:
            self._count(root)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)
        super().begins_backward(root)

    def _wait_beside(self, loader: int, batch: object, reading: Batch) -> None:
        """If a model was called since the previous batch was fetched, that one was used."""
        waiting = self._pending[loader]
        if self.ran and waiting:
            taken = self._taken.setdefault(loader, [])
            taken.append((self._start, waiting.pop()[0]))
            self._start, self._ahead = next_start(len(taken)), True
        waiting.append((reading, identify(batch)))
        del waiting[:-MOST_PENDING]
        self.several = self.several or len(waiting) > 1

    def takes(self, arguments: object) -> None:
        self.ran = False
        tensors = identify(arguments)
        if same(tensors, self._last_call):
            return
        self._last_call = tensors
        for loader, waiting in self._pending.items():
            taken = self._taken.get(loader, [])
            if len(waiting) > 1 or (waiting and taken):
                batches, newest = take(waiting, arguments, again=bool(taken), alone=len(self._pending) == 1)
                if batches:
                    start = next_start(len(taken)) if taken else FIRST
                    self._taken[loader] = taken + [(start, batch) for batch in batches]
                    self._ahead = not newest

    def _count(self, root: object) -> None:
        """Without a call that shows which, a loader's only waiting batch counts; of several, amounts are unknown."""
        self._learned, counted = True, False
        for loader, waiting in self._pending.items():
            taken = self._taken.pop(loader, [])
            if len(waiting) > 1 and not taken:  # no watched call shows which batch
                self._ahead = True
                taken.append((self._start, UNKNOWN))
            elif waiting and (self.ran or not taken):
                taken.append((self._start, waiting.pop()[0]))
            starts = reached(root, [start for start, _ in taken]) if len(taken) > 1 else {start for start, _ in taken}
            for start, batch in taken:
                if start in starts:
                    self.recorder.add(batch)
                    counted = True
            if len(starts) < len({start for start, _ in taken}):  # another backward may reach the rest
                self._taken[loader] = [pair for pair in taken if pair[0] not in starts]
        self._last_call, self._start, self.ran = (), FIRST, False
        self.several = any([len(waiting) > 1 for waiting in self._pending.values()])
        if self._doubtful is not None and not counted:
            self._always.add(self._doubtful[0])
            self.recorder.add(self._doubtful[1])
        self._doubtful = None

    def _schedule(self, gradients: Any, inner: Callable[..., Any]) -> Callable[..., Any]:
        """The stage is `optimizer`, except between accumulated micro-batches, where the scheduler does nothing."""

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
            if get_ident() != self.thread or not self.recorder.active:
                return inner(*args, **kwargs)
            with self.span("checkpoint"):
                return inner(*args, **kwargs)

        return call


def _know_signature(optimizer: object) -> None:
    """Accelerate inspects `zero_grad` before each call.

    The signature is on a `partial` of the original method: a later wrapper of the program copies all attributes of
    ours, and would copy a wrong signature.
    """
    ours: Any = getattr(vars(optimizer).get("zero_grad"), "__func__", None)
    inner = getattr(ours, "__wrapped__", None)
    if inner is not None:
        signed: Any = functools.partial(inner)
        signed.__signature__ = inspect.signature(inner)
        ours.__wrapped__ = signed
