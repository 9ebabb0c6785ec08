"""What is watched in a plain loop: the loader, the model, the backward, the optimizer."""

import copy
import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Generic, TypeVar

import torch
from torch import is_grad_enabled, nn
from torch._C._dynamo.eval_frame import set_eval_frame

from perf_callbacks.core.marks import ONE_MORE_FORWARD
from perf_callbacks.core.stages import Stage
from perf_callbacks.doors import methods
from perf_callbacks.doors.model_calls import ModelCalls
from perf_callbacks.flops.stance import STANCE, in_compiled_call
from perf_callbacks.host.backward import BACKWARDS
from perf_callbacks.session.recorder import Recorder

B = TypeVar("B")
T = TypeVar("T")

# Looking a member up in its class costs as much as recording it.
_DATA, _FORWARD, _BACKWARD, _OPTIMIZER = Stage.DATA, Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER
_OTHER, _UNDECIDED = Stage.OTHER, Stage.UNDECIDED


class LoopWatch:
    """Tells a recorder about the loop's stages, from the calls that every loop makes in the thread that is measured."""

    hears_backwards = True

    def __init__(self, recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.recorder = recorder
        self.steps = recorder.run.step
        self._tape, self._clock = recorder.tape, recorder.clock
        self._model = model
        self._optimizer: Any = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        self._thread = get_ident()
        self._calls: list[ModelCalls] = []
        self._evaluating = False
        self._spans = 0
        self._backwards = 0
        self._optimizing = 0
        self._late: object = False

    def install(self) -> None:
        """Begin to watch. The recorder takes it all back when it closes."""
        recorder, optimizer = self.recorder, self._optimizer
        recorder.patches.add(self._calls.clear)  # they hold on to us: a model is freed with its last user, not later
        recorder.patches.add(
            optimizer.register_step_pre_hook(self._begin_step).remove,
            optimizer.register_step_post_hook(self._end_step).remove,
        )
        methods.stages(recorder, optimizer, "zero_grad", Stage.OPTIMIZER)
        recorder.patches.add(functools.partial(BACKWARDS.leave, self))
        BACKWARDS.join(self)
        self._watch_model(self._model)

    def turn(self, stage: Stage) -> None:
        """The loop trains, and turns to `stage`; an evaluation that was seen to begin is over."""
        if get_ident() != self._thread:
            return
        try:
            if self._evaluating:
                self._evaluating = False
                self.recorder.end_span()
            self._tape.write((stage, self._clock()))
            if self._late:
                self._begin_late()
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.recorder.fail(error)

    def take(self, batch: object) -> None:
        """The loader has handed over a batch."""
        self.recorder.batch(batch)
        if get_ident() != self._thread:
            return
        self._backwards = self._optimizing = 0
        try:
            self._tape.write((_OTHER, self._clock()))
            for calls in self._calls:
                if calls.model._compiled_call_impl is not calls.compiled:  # noqa: SLF001 there is no other way to tell
                    calls.again()
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.recorder.fail(error)

    @contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """The block is part of no step."""
        self.turn(_OTHER)
        self._spans += 1
        self.recorder.begin_span(kind)
        try:
            yield
        finally:
            self._spans -= 1
            self.recorder.end_span()

    def call(self, model: nn.Module) -> None:
        """A model is being called."""
        if self._backwards or get_ident() != self._thread:  # checkpointing runs it again in the backward
            return
        if self._late:
            self._begin_late()
        if not (model.training or is_grad_enabled() or self._spans):
            self.evaluate()
        elif self._evaluating:
            self.turn(_FORWARD)
        else:
            pairs = self._tape.pairs
            if not pairs or pairs[-2] is not _FORWARD:  # it may be called a million times before a step ends
                self.recorder.enter(_FORWARD)

    def evaluate(self) -> None:
        """An evaluation was seen to begin, or to go on."""
        if not self._evaluating:
            self._evaluating = True
            self.recorder.begin_span("evaluation")

    def backward(self, inner: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """A backward. Reentrant checkpointing does others inside of it."""
        if not self.begins_backward():
            return inner(*args, **kwargs)
        try:
            return inner(*args, **kwargs)
        finally:
            self.ends_backward()

    def begins_backward(self) -> bool:
        """A backward begins; whether it is one that counts."""
        if self._backwards or get_ident() != self._thread:
            return False
        self._backwards = 1
        try:
            self.turn(_BACKWARD)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.recorder.fail(error)
        return True

    def begins_gradients(self) -> bool:
        """Take a call of `torch.autograd.grad` for a backward. In an evaluation it is part of that."""
        return not self._evaluating and self.begins_backward()

    def builds_graph(self) -> None:
        """Take a gradient that is part of the loss for one more turn to the forward, which needs no time.

        So a step with a penalty is told from one without, in whichever steps it comes.
        """
        if self._backwards or self._evaluating or self._spans or get_ident() != self._thread:
            return
        for mark in ONE_MORE_FORWARD:
            self.recorder.enter(mark)

    def ends_backward(self) -> None:
        """It is over."""
        self._backwards = 0
        self.recorder.enter(_OPTIMIZER if self._optimizing else _UNDECIDED)

    def _watch_model(self, model: nn.Module) -> None:
        self._calls.append(ModelCalls(self.recorder, model, self.call))

    def _begin_step(self, *_: object) -> None:
        self._optimizing += 1
        self.turn(_OPTIMIZER)

    def _end_step(self, *_: object) -> None:
        # A `step` that calls `super().step()` has the hooks of both.
        self._optimizing = max(0, self._optimizing - 1)
        if not self._optimizing:
            self.steps += 1
            compiler = set_eval_frame(None)  # within a compiled call it would look at every frame of ours
            try:
                self._late = compiler is not None or self._backwards or STANCE.ours is not None
                self.recorder.end_step(self.steps, begins=not self._late)
            finally:
                if compiler is not None:
                    set_eval_frame(compiler)

    # Nor is the compiler to trace these two. `torch.compiler.disable` would import it, and take a microsecond per step.
    for _hook in (_begin_step, _end_step):
        _hook._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001
    del _hook

    def _begin_late(self) -> None:
        """Begin the next step, if the compiled call or the backward within which the last one ended is over.

        Nothing can be counted from within such a call. A compiled one that runs eagerly, being counted, can't be told
        quickly from others, so that what begins after any counted step begins here.
        """
        if not (self._backwards or in_compiled_call()):
            self._late = False
            self.recorder.begin_step()


class MeasuredLoader(Generic[B]):
    """A loader whose waits are measured; in all other respects, and in copies, the loader itself."""

    def __init__(self, loader: Iterable[B], current: Callable[[], LoopWatch | None]) -> None:
        self._loader = loader
        self._current = current

    def __iter__(self) -> Iterator[B]:
        watching = self._current()
        if watching is None:
            yield from self._loader
            return
        try:
            watching.turn(_DATA)
            for batch in self._loader:
                watching.take(batch)
                held = [batch]
                del batch  # a batch on a device is freed when the loop lets go of it, not when the next one is there
                yield held.pop()
                watching.turn(_DATA)
            watching.turn(_OTHER)
        finally:  # after an exception that the loop does not survive, this is the last that is heard of it
            watching.recorder.leave()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # where the loader has none, it says so itself

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # of an object that is being made there is none yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __copy__(self) -> Any:
        return copy.copy(self._loader)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Pickle and deepcopy as the loader: who measures it can't travel."""
        return operator.getitem, ((self._loader,), 0)
