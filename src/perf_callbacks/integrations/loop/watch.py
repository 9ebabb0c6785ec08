"""Watched calls of a plain loop: its loader, model, backward and optimizer."""

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

from perf_callbacks.flops.counting.phases import in_function
from perf_callbacks.integrations import methods
from perf_callbacks.integrations.loop.model_calls import Inputs, ModelCalls
from perf_callbacks.kernel.batches.reader import ROWS, UNREADABLE, Batch, shape_of
from perf_callbacks.kernel.batches.waiting import (
    MOST_WAITING,
    UNKNOWN,
    Tensors,
    identify,
    same,
    take,
    untrained,
    versions,
)
from perf_callbacks.kernel.engine.marks import END
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.fit.first_batch import FirstBatch
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process.backward import BACKWARDS, Loop
from perf_callbacks.kernel.process.compiler import in_compiled_call
from perf_callbacks.kernel.process.graphs import FIRST, next_start, reached

B = TypeVar("B")

# Looking up an enum's member costs as much as writing the mark.
_DATA, _OPTIMIZER, _OTHER = Stage.DATA, Stage.OPTIMIZER, Stage.OTHER


class LoopWatch(Loop):
    """Marks the stages of a plain loop, by watching its calls in the measured thread.

    While the loop trains, a watched call costs one Python frame, which writes a mark. `turn` and `call` handle all
    other cases, such as evaluations.
    """

    def __init__(self, recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(recorder.tape, recorder.clock, recorder.fail)
        self.recorder = recorder
        self.steps = recorder.run.step
        self.first_batch = FirstBatch()  # for the checklist item `loaders`
        self._observers, self._append = recorder.observers, recorder.engine.ended.append
        self._model = model
        self._optimizer: Any = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        self._calls: list[ModelCalls] = []
        self._inputs: Inputs | None = None
        """Gets the model's arguments; None if the loop has a loader."""
        self.engine = recorder.engine
        self._took_newest = False  # the model was called with the newest batch while older ones waited
        self._last_call: Tensors = ()
        self._last_written: tuple[int, ...] = ()  # versions of the tensors in `_last_call` at that call

    def install(self) -> None:
        recorder, optimizer = self.recorder, self._optimizer
        recorder.patches.add(self._calls.clear)  # hooks refer to us: without this, a model outlives its last user
        recorder.patches.add(
            optimizer.register_step_pre_hook(self._begin_step).remove,
            optimizer.register_step_post_hook(self._end_step).remove,
        )
        methods.stages(recorder, optimizer, "zero_grad", Stage.OPTIMIZER)
        recorder.patches.add(functools.partial(BACKWARDS.release, self))
        BACKWARDS.join(self)
        self._watch_model(self._model)

    def turn(self, stage: Stage, *_: object) -> None:
        if get_ident() != self.thread:
            return
        try:
            self._end_evaluation()
            self.tape.write((stage, self.clock()))
            self._begin_late()
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def batches(self, loader: Iterable[B]) -> Iterator[B]:  # noqa: C901, PLR0912 a call is a frame in each step
        tape, clock, thread, recorder, engine = self.tape, self.clock, self.thread, self.recorder, self.recorder.engine
        reader, first_batch = recorder.reader, self.first_batch
        waiting, data, other = self.waiting, _DATA, _OTHER
        try:
            self.turn(data)
            here = get_ident() == thread
            batch: Any  # of type `B`, whose attributes are unknown
            for batch in loader:
                try:
                    reading = None
                    if engine.takes_batches and reader.by_shapes:  # as `Recorder.batch`, without its frame
                        try:
                            reading = reader.by_shapes.get(
                                tuple(map(shape_of, batch))
                                if type(batch) in ROWS
                                else (*batch.keys(), *map(shape_of, batch.values()))
                            )
                        except UNREADABLE as error:
                            let_pass(error)
                    if reading is None and recorder.active and not engine.open_spans:
                        if first_batch.wanted:
                            first_batch.see(batch)
                        reading = reader.read(batch)
                        if len(engine.batches) >= engine.relieve_at:
                            engine.relieve()
                    if reading is not None:
                        if waiting:
                            self._wait(batch, reading)
                        else:
                            waiting.append((reading, ()))
                    if here:
                        for calls in self._calls:
                            if calls.model._compiled_call_impl is not calls.compiled:  # noqa: SLF001 nothing public
                                calls.again()
                        # A backward or a step that raised has marked only its beginning.
                        self.in_backward, self.optimizing = False, 0
                        tape.write((other, clock()))
                except Exception as error:  # noqa: BLE001 an observer never ends the run
                    self.fail(error)
                held = [batch]
                # A batch on a device is freed when the loop drops the batch, not when the next batch is there.
                del batch
                yield held.pop()
                here = get_ident() == thread
                if self.evaluating or self.late or not here:
                    self.turn(data)
                    continue
                try:
                    tape.write((data, clock()))
                except Exception as error:  # noqa: BLE001 as above
                    self.fail(error)
            self.turn(_OTHER)
            self.recorder.leave(exhausted=True)
        except BaseException:  # an exception that the loop may not survive, or a `break`: nothing else reports these
            self.recorder.leave()
            raise

    @contextmanager
    def span(self, kind: str) -> Iterator[None]:
        self.turn(_OTHER)
        self.spans += 1
        self.recorder.begin_span(kind)
        try:
            yield
        finally:
            self.spans -= 1
            self.recorder.end_span()

    def call(self, model: nn.Module) -> bool:
        self._begin_late()
        if not (is_grad_enabled() or self.spans):
            if not model.training:
                self.evaluate()
                return False
            if self._samples():
                return False
        self._end_evaluation()
        return True

    def _samples(self) -> bool:
        """Calls without gradients train if the step has a batch, no backward ever ran, or in an autograd function."""
        return self.backed and not (self.waiting or self.engine.batches) and not in_function()

    def evaluate(self) -> None:
        if not self.evaluating:
            self.evaluating = True
            self.recorder.begin_span("evaluation")

    def _watch_model(self, model: nn.Module) -> None:
        self._calls.append(ModelCalls(self.recorder, self, model, self._inputs))

    def _wait(self, batch: Any, reading: Batch) -> None:
        """Drop batches older than the newest one that the model got, unless another thread fetches."""
        self.waiting.append((reading, identify(batch)))
        self.several = True
        if get_ident() == self.thread:
            del self.waiting[: -1 if self._took_newest else -MOST_WAITING]
            self._took_newest = False

    def takes(self, arguments: object) -> None:
        """Move the waiting batches of a model call to the current step. A repeated call is ignored."""
        tensors = identify(arguments)
        written, before = versions(tensors), self._last_written
        waits = any([same(tensors, others) for _, others in self.waiting])
        if not waits and written == before and same(tensors, self._last_call):
            return
        self._last_call, self._last_written = tensors, written
        taken, newest = take(self.waiting, arguments, again=bool(self.starts))
        self.several = bool(self.waiting)
        self._took_newest = self.several and (self._took_newest or newest)
        self.engine.batches += taken
        self.starts += [next_start(len(self.starts)) if self.starts else FIRST] * len(taken)

    def backpropagates(self, root: object) -> None:
        """Of several batches, count only those on which the loss depends."""
        starts = self.starts[:]
        super().backpropagates(root)
        if len(starts) > len(self.engine.batches):
            self._merged()
        elif len(starts) > 1:
            reached_starts = reached(root, starts)
            batches = self.engine.batches[-len(starts) :]
            others = [place for place, start in enumerate(starts) if start not in reached_starts]
            trained = [batch for place, batch in enumerate(batches) if place not in others]
            self.engine.batches[-len(starts) :] = trained + [batches[place] for place in others]
            self.starts += [starts[place] for place in others]  # another backward may reach these

    def _settle(self) -> None:
        """At the end of a step, batches that no backward has reached are untrained."""
        if self.starts and self.backed and len(self.starts) > len(self.engine.batches):
            self._merged()
        elif self.starts and self.backed:
            batches, left = self.engine.batches, slice(-len(self.starts), None)
            batches[left] = map(untrained, batches[left])
            self.starts.clear()
        if not self.engine.batches:  # the loop trains without watched calls
            trained = self.waiting[:]
            del self.waiting[: len(trained)]
            self.several = False
            self.engine.batches += [batch for batch, _ in trained]

    def _merged(self) -> None:
        """The engine has merged the step's batches: samples and tokens are unknown."""
        self.engine.batches[:] = [UNKNOWN]
        self.starts.clear()

    @property
    def called(self) -> bool:
        return any(calls.seen for calls in self._calls)

    def _begin_step(self, *_: object) -> None:
        self.optimizing += 1
        if self.evaluating or self.late or get_ident() != self.thread:
            self.turn(_OPTIMIZER)
            return
        try:
            self.tape.write((_OPTIMIZER, self.clock()))
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def _end_step(self, *_: object) -> None:
        if self.optimizing > 1:  # a `step` that calls `super().step()` has the hooks of both
            self.optimizing -= 1
            return
        self.optimizing = 0
        self.steps = step = self.steps + 1
        try:
            if self.starts or (self.waiting and not self.engine.batches):
                self._settle()
            engine, now = self.engine, self.clock()
            if step < self._observers.due and now < engine.flush_at:  # as `Recorder.end_step`, without its frame
                self._append((step, engine.excluded, engine.batches))
                self.tape.write((END, now))
                engine.step, engine.excluded, engine.batches = step, None, []
                return
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)
        compiler = set_eval_frame(None)  # a compiled call would otherwise inspect every frame of ours
        try:
            self.late = compiler is not None or self.in_backward
            self.recorder.end_step(step, begins=not self.late)
        finally:
            if compiler is not None:
                set_eval_frame(compiler)

    # The compiler must not trace these two. `torch.compiler.disable` would import the compiler, and take 1 us per step.
    for _hook in (_begin_step, _end_step):
        _hook._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001
    del _hook

    def _end_evaluation(self) -> None:
        if self.evaluating:
            self.evaluating = False
            self.recorder.end_span()

    def _begin_late(self) -> None:
        """Begin the step after one that ended within a compiled call or a backward, where no count can begin."""
        if self.late and not (self.in_backward or in_compiled_call()):
            self.late = False
            self.recorder.begin_step()


class MeasuredLoader(Generic[B]):
    """Wrapper that measures the wait for each batch. It has the loader's attributes, and is copied as the loader."""

    def __init__(self, loader: Iterable[B], current: Callable[[], LoopWatch | None]) -> None:
        self._loader = loader
        self._current = current

    def __iter__(self) -> Iterator[B]:
        watch = self._current()
        return iter(self._loader) if watch is None else watch.batches(self._loader)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a loader without a length raises by itself

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # an object that is being made has none yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __copy__(self) -> Any:
        return copy.copy(self._loader)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Pickle and deepcopy as the original loader, because the measurement can't be copied."""
        return operator.getitem, ((self._loader,), 0)
