"""The door for a plain PyTorch loop.

from perf_callbacks.loop import measure

with measure(model=model, optimizer=optimizer, loader=loader) as perf:
    for batch in perf.loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from perf_callbacks.core.config import PerfConfig
from perf_callbacks.core.records import Summary
from perf_callbacks.core.settings import resolve
from perf_callbacks.core.stages import Stage
from perf_callbacks.host import watch
from perf_callbacks.host.place import Place
from perf_callbacks.host.recorder import Recorder, describe, log
from perf_callbacks.report import text

__all__ = ["Measurement", "measure"]

B = TypeVar("B")


def measure(
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Iterable[B],
    config: PerfConfig | None = None,
    resume: Mapping[str, Any] | None = None,
) -> "Measurement[B]":
    """Measure the loop in the `with` block: a step ends where `optimizer.step()` does.

    Stages are seen without a change to the loop. Data is the time in `next(perf.loader)`. Forward begins with the call
    of the model and lasts until the backward, so it holds the loss. Optimizer begins where the backward ended, if an
    optimizer step is what follows, so it holds clipping; `optimizer.zero_grad()` belongs to it too, a scheduler does
    not. The rest is other.

    A call of the model in eval mode without gradients begins an evaluation, which lasts until the next training call or
    batch. `perf.evaluation()` and `perf.checkpoint()` say it exactly. Neither is part of any step.

    Hooks and wrappers on these three objects, and on `torch.autograd.backward`, are taken back at the end of the block.

    Args:
        model: The model as the loop calls it, wrapped or compiled.
        optimizer: The optimizer whose steps count.
        loader: Any iterable of batches. Iterate over `perf.loader` instead of it.
        config: What to measure; the environment overrules it.
        resume: `perf.state()` as it was saved with the checkpoint that this loop goes on from.
    """
    return Measurement(model, optimizer, loader, config, resume)


class Measurement(Generic[B]):
    """A loop being measured: what `measure` hands to the `with` block."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Iterable[B],
        config: PerfConfig | None,
        resume: Mapping[str, Any] | None,
    ) -> None:
        self._settings = resolve(config, os.environ)
        for remark in self._settings.remarks:
            log.warning("perf_callbacks: %s", remark)
        self.model = model
        self._optimizer = optimizer
        self._carried = dict(resume or {})
        self._step = int(self._carried.get("step", 0))
        self._recorder: Recorder | None = None
        self._evaluating = False
        self._spans = 0
        self.loader = _Loader(loader, self)
        """The loader, with its waits measured. Everything else about it is the loader's own."""

    def __enter__(self) -> "Measurement[B]":
        if self._settings.config.enabled:
            try:
                self._begin()
            except Exception as error:  # noqa: BLE001 an observer never ends the run
                self._fail(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._recorder is not None:
            self._recorder.close(None if error is None else describe(error))
            if error is None and self._recorder.run.rank == 0 and self.summary is not None:
                print(text.closing(self.summary))  # noqa: T201 what a person sees

    @property
    def summary(self) -> Summary | None:
        """The loop in figures, so far or at its end; None where nothing was measured."""
        return self._recorder.summary if self._recorder is not None else None

    def row(self) -> dict[str, float]:
        """Metrics of the steps since the last row, ready to log; empty where there are none."""
        return (self._recorder.row(self._step) if self._recorder is not None else None) or {}

    def state(self) -> dict[str, Any]:
        """What to save with a checkpoint, for `measure(resume=…)`."""
        counters = self._recorder.state if self._recorder is not None else {}
        return {**self._carried, **counters, "step": self._step}

    def evaluation(self) -> AbstractContextManager[None]:
        """`with perf.evaluation():` the block is part of no step."""
        return self._span("evaluation")

    def checkpoint(self) -> AbstractContextManager[None]:
        """`with perf.checkpoint():` the block is part of no step."""
        return self._span("checkpoint")

    @contextmanager
    def _span(self, kind: str) -> Iterator[None]:
        self.train()
        self._spans += 1
        if self._recorder is not None:
            self._recorder.begin_span(kind)
        try:
            yield
        finally:
            self._spans -= 1
            if self._recorder is not None:
                self._recorder.end_span()

    def _fail(self, error: Exception) -> None:
        if self._recorder is not None:
            self._recorder.fail(error)
        else:
            log.warning("perf_callbacks could not begin, training goes on: %s.", describe(error), exc_info=error)

    def _begin(self) -> None:
        self._recorder = recorder = Recorder(self._settings, self._place())
        optimizer: Any = getattr(self._optimizer, "optimizer", self._optimizer)  # accelerate wraps it
        recorder.patches.add(
            self.model.register_forward_pre_hook(_ModelHook(self), prepend=True).remove,
            optimizer.register_step_pre_hook(lambda *_: self.turn(Stage.OPTIMIZER)).remove,
            optimizer.register_step_post_hook(lambda *_: self._end_step()).remove,
        )
        watch.stages(recorder, optimizer, "zero_grad", Stage.OPTIMIZER)
        recorder.patches.replace(torch.autograd, "backward", functools.partial(_backward, recorder))
        if recorder.run.rank == 0:
            print(text.opening(recorder.run, journal=recorder.journal_path))  # noqa: T201 what a person sees

    def _place(self) -> Place:
        parameter = next(self.model.parameters(), None)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        return Place(
            door="loop",
            directory=Path(),
            device=torch.device("cpu") if parameter is None else parameter.device,
            rank=torch.distributed.get_rank() if distributed else 0,
            world_size=torch.distributed.get_world_size() if distributed else 1,
            step=self._step,
            versions={},
            carried=self._carried or None,
        )

    def _end_step(self) -> None:
        self._step += 1
        if self._recorder is not None:
            self._recorder.end_step(self._step)

    def turn(self, stage: Stage) -> None:
        """The loop turns to `stage`. Called by the hooks."""
        if self._evaluating:
            self.train()
        if self._recorder is not None:
            self._recorder.enter(stage)

    def take(self, batch: B) -> None:
        """The loader has handed over a batch. Called by the loader."""
        if self._recorder is not None:
            self._recorder.enter(Stage.OTHER)
            self._recorder.batch(batch)

    def call(self, model: nn.Module) -> None:
        """The model is being called. Called by the hook."""
        if model.training or torch.is_grad_enabled() or self._spans:
            self.turn(Stage.FORWARD)
        elif self._recorder is not None and not self._evaluating:
            self._evaluating = True
            self._recorder.begin_span("evaluation")

    def train(self) -> None:
        """Training goes on: an evaluation that was seen to begin is over."""
        if self._evaluating:
            self._evaluating = False
            if self._recorder is not None:
                self._recorder.end_span()


class _Loader(Generic[B]):
    """A loader whose waits are measured; in all other respects the loader itself."""

    def __init__(self, loader: Iterable[B], measurement: Measurement[B]) -> None:
        self._loader = loader
        self._measurement = measurement

    def __iter__(self) -> Iterator[B]:
        measurement = self._measurement
        measurement.turn(Stage.DATA)
        for batch in self._loader:
            measurement.take(batch)
            yield batch
            measurement.turn(Stage.DATA)
        measurement.turn(Stage.OTHER)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # where the loader has none, it says so itself

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _ModelHook:
    """A forward pre-hook for one module: not for its copies, and not for what unpickles it."""

    def __init__(self, measurement: Measurement[Any]) -> None:
        self._measurement = measurement
        self._model = id(measurement.model)

    def __call__(self, module: nn.Module, _args: object) -> None:
        if id(module) == self._model and not torch.compiler.is_compiling():
            self._measurement.call(module)

    def __deepcopy__(self, memo: object) -> "Callable[[nn.Module, object], None]":
        return _nothing

    def __reduce__(self) -> "tuple[Callable[[], object], tuple[()]]":
        return _hook_of_a_copy, ()


def _nothing(_module: nn.Module, _args: object) -> None:
    """The hook of a model that was copied or saved while it was measured."""


def _hook_of_a_copy() -> Callable[[nn.Module, object], None]:
    return _nothing


def _backward(recorder: Recorder, inner: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.autograd.backward`, which `Tensor.backward` calls, for this thread."""
    thread = threading.get_ident()

    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return inner(*args, **kwargs)
        before = recorder.enter(Stage.BACKWARD)
        try:
            return inner(*args, **kwargs)
        finally:  # reentrant checkpointing calls it from inside a backward
            recorder.enter(before if before is Stage.BACKWARD else Stage.UNDECIDED)

    return call
