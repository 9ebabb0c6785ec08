"""Warnings about loops that can't be measured, with the code to write instead."""

import weakref
from dataclasses import dataclass

from torch import nn
from typing_extensions import override

from perf_callbacks.integrations.loop.watch import LoopWatch
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.fit.recorder import log
from perf_callbacks.kernel.settings.config import ConfigError, kind

AFTER = 3  # steps after which a check looks for fetched batches and model calls


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentences:
    """Warning texts of an integration, each with the remedy."""

    no_batch: str
    no_call: str
    no_step: str


LOOP = Sentences(
    no_batch="perf_callbacks: %s and no batch: iterate over perf.loader, not over the loader itself.",
    no_call="perf_callbacks: %s, and the model given to measure() was never called: "
    "give it the model that the loop calls, wrapped or compiled as it is.",
    no_step="perf_callbacks: the loop was over without a step of the optimizer given to measure(). "
    "If one optimizer wraps another, give measure() the optimizer whose step() updates the weights.",
)
ACCELERATE = Sentences(
    no_batch="perf_callbacks: %s and no batch from a prepared loader: iterate over the loader that "
    "accelerator.prepare(...) or accelerator.skip_first_batches(...) returned.",
    no_call="perf_callbacks: %s, and no prepared model was called: "
    "call the model that accelerator.prepare(...) returned.",
    no_step="perf_callbacks: the loop was over without a step of the optimizer that was prepared first, whose steps "
    "count: prepare the optimizer that updates the weights first.",
)
NO_WITH = (
    "perf_callbacks measures only inside of the with block: "
    "with measure(model=..., optimizer=..., loader=...) as perf: for batch in perf.loader: ..."
)


def check(model: object, optimizer: object, loader: object) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: got {kind(model)}, wanted the torch.nn.Module that the loop calls.")
    hooked = hasattr(getattr(optimizer, "optimizer", optimizer), "register_step_post_hook")
    if isinstance(optimizer, type) or not hooked:
        raise ConfigError(f"optimizer: got {kind(optimizer)}, wanted the torch.optim.Optimizer whose steps count.")
    iterable = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    if loader is not None and (isinstance(loader, type) or not iterable):
        raise ConfigError(f"loader: got {kind(loader)}, wanted an iterable of batches, or None.")


class LoopUsage(Observer):
    """Checks once that model and loader are used. The weak watch lets the model of an abandoned loop be freed."""

    def __init__(self, watch: LoopWatch, sentences: Sentences, *, has_loader: bool) -> None:
        self._watch = weakref.ref(watch)
        self._sentences = sentences
        self._has_loader = has_loader
        self._due = watch.recorder.step + AFTER

    @property
    @override
    def due(self) -> int:
        return self._due

    @override
    def step_ended(self, step: int) -> None:
        watch = self._watch()
        if step >= self._due and watch is not None:
            self._check(watch, step)

    @override
    def closed(self) -> None:
        watch = self._watch()
        if watch is None or watch.recorder.failure is not None:
            return
        recorder = watch.recorder
        if recorder.step > recorder.run.step:
            self._check(watch, recorder.step)
        elif watch.called or recorder.reader.has_read:
            log.warning(self._sentences.no_step)

    def _check(self, watch: LoopWatch, step: int) -> None:
        if self._due == NEVER:
            return
        self._due = NEVER
        steps = step - watch.recorder.run.step
        count = f"{steps} optimizer step{'s' if steps > 1 else ''}"
        if self._has_loader and not watch.recorder.reader.has_read:
            log.warning(self._sentences.no_batch, count)
        if not watch.called:
            log.warning(self._sentences.no_call, count)
