"""Measurement of a plain PyTorch loop in a `with` block."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Generic, NoReturn

import torch
from torch import nn
from typing_extensions import TypeVar

from perf_callbacks.integrations.loop.loaderless import LoaderlessWatch
from perf_callbacks.integrations.loop.usage import LOOP, NO_WITH, LoopUsage, check
from perf_callbacks.integrations.loop.watch import LoopWatch, MeasuredLoader
from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.fit.item import Batches
from perf_callbacks.kernel.fit.location import of_loop
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import TrainingObjects
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.settings.config import ConfigError, PerfConfig
from perf_callbacks.session import Session, checked

B = TypeVar("B", default=Any)  # without a loader


def measure(
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Iterable[B] | None = None,
    config: PerfConfig | None = None,
    resume: Mapping[str, Any] | None = None,
    data_parallel: int | None = None,
    **strays: NoReturn,
) -> "Measurement[B]":
    """Measure the loop in the `with` block: each step ends with `optimizer.step()`.

    The loop iterates over `perf.loader`, and needs no other change. The stage `data` is the wait for a batch; `forward`
    lasts from the call of the model to the backward, with the loss; `optimizer` begins at the end of the last backward
    before a step, and includes gradient clipping and `zero_grad`, but no scheduler. The rest is the stage `other`.

    A call of the model in eval mode without gradients begins an evaluation, which ends with a call with gradients or
    the next batch. `perf.evaluation()` and `perf.checkpoint()` mark the exact blocks. The metrics of `perf.row()` leave
    out every step with either, so a loop that evaluates in every step gets none.

    Only the thread that enters the `with` block is measured. At its end, all hooks and wrappers are removed.

    Args:
        model: Model that the loop calls, wrapped or compiled as it is.
        optimizer: Optimizer whose steps count.
        loader: Any iterable of batches. If None, the loop fetches batches itself, and can report waits with
            `perf.data()`, and batches with `perf.batch(...)`.
        config: The settings. Environment variables override them.
        resume: Result of `perf.state()` that was saved with the checkpoint from which the loop continues.
        data_parallel: Groups of ranks that train on the same samples: fewer than ranks with tensor, pipeline or context
            parallelism. By default from the device meshes of the parameters; else rates of the job are unknown.
        strays: Unknown keyword arguments raise an error. Settings go into `config`.
    """
    checked(config, strays, "measure(..., config=PerfConfig({}))")
    check(model, optimizer, loader)
    if data_parallel is not None and not (type(data_parallel) is int and data_parallel > 0):
        raise ConfigError(f"data_parallel: got {data_parallel!r}, wanted a number of ranks above 0.")
    return Measurement(model, optimizer, loader, config, resume, data_parallel=data_parallel)


class Measurement(Generic[B]):
    """Measurement of a loop: the object that `measure` hands to the `with` block."""

    __module__ = "perf_callbacks.loop"  # the name in pickles

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Iterable[B] | None,
        config: PerfConfig | None,
        resume: Mapping[str, Any] | None,
        *,
        data_parallel: int | None = None,
    ) -> None:
        self._session = Session(config)
        self._model = model
        self._optimizer = optimizer
        self._loader = loader
        self._loaders = () if loader is None else (loader,)
        self._carried = dict(resume or {})
        self._data_parallel = data_parallel
        self._watch: LoopWatch | None = None
        self._entered = False
        self._loader_measured = None if loader is None else MeasuredLoader(loader, self._current)

    def __enter__(self) -> "Measurement[B]":
        self._entered = True
        if self._session.enabled:
            with guard(self._session.fail):
                location = of_loop(self._model, self._carried, self._data_parallel)
                watch = self._session.begin(location, self._watching, self._model, self._batches, objects=self._objects)
                watch.recorder.observe(LoopUsage(watch, LOOP, has_loader=self._loader is not None))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.end(error)
        if error is None:
            self._session.show_summary()

    def __iter__(self) -> NoReturn:
        raise TypeError("the measurement is no loader: iterate over perf.loader, not over perf.")

    @property
    def loader(self) -> "MeasuredLoader[B]":
        """Loader that works like the original loader, and measures the wait for each batch."""
        if self._loader_measured is None:
            raise ConfigError("measure() got no loader: iterate over your own, or give it one by loader=.")
        return self._loader_measured

    def data(self) -> AbstractContextManager[None]:
        """Mark a block as a wait for data, in a loop without a loader: `with perf.data():`."""
        return self._watch.data() if isinstance(self._watch, LoaderlessWatch) else nullcontext()

    def batch(self, batch: Any = None, *, samples: int | None = None, tokens: int | None = None) -> None:
        """Report a micro-batch, or only its number of samples or tokens, in a loop without a loader.

        In a loop with a loader, this method does nothing.
        """
        watch = self._watch
        if isinstance(watch, LoaderlessWatch) and watch.recorder.active:
            watch.recorder.attempt(lambda _: watch.report(batch, samples, tokens))

    @property
    def summary(self) -> Summary | None:
        """Summary of the loop so far, or of the whole loop after its end. None if nothing was measured."""
        return self._session.summary

    def row(self) -> dict[str, float]:
        """Return the metrics of the steps since the last call, ready to log. Return {} if there are no metrics."""
        return (self._watch.recorder.row(self._watch.steps) if self._watch is not None else None) or {}

    def state(self) -> dict[str, Any]:
        """Return the counters to save with a checkpoint, for `measure(resume=…)`. Only measured steps count."""
        if self._watch is None:
            return dict(self._carried)
        return self._watch.recorder.state

    def evaluation(self) -> AbstractContextManager[None]:
        """Mark a block as an evaluation, whose time belongs to no step: `with perf.evaluation():`."""
        return nullcontext() if self._watch is None else self._watch.span("evaluation")

    def checkpoint(self) -> AbstractContextManager[None]:
        """Mark a block as a checkpoint, whose time belongs to no step: `with perf.checkpoint():`."""
        return nullcontext() if self._watch is None else self._watch.span("checkpoint")

    def _watching(self, recorder: Recorder) -> LoopWatch:
        kind = LoaderlessWatch if self._loader is None else LoopWatch
        self._watch = kind(recorder, self._model, self._optimizer)
        return self._watch

    def _current(self) -> LoopWatch | None:
        if not self._entered and self._session.enabled:
            self._entered = True
            log.warning(NO_WITH)
        return self._watch

    def _batches(self) -> Batches:
        pinned = True if getattr(self._loader, "pin_memory", False) else None
        first_batch = None if self._watch is None else self._watch.first_batch
        return Batches(pinned=pinned, loaders=self._loaders, first_batch=first_batch)

    def _objects(self) -> TrainingObjects:
        return TrainingObjects(optimizers=(self._optimizer,), loaders=self._loaders, called=self._model)
