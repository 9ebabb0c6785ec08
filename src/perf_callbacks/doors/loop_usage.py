"""Sentences for loops that measure nothing: what they forgot, and what to write instead."""

from torch import nn

from perf_callbacks.core.config import ConfigError
from perf_callbacks.core.observer import Observer
from perf_callbacks.core.steps import NEVER
from perf_callbacks.doors.loop_watch import LoopWatch
from perf_callbacks.session.recorder import log

AFTER = 3
"""Steps of a fit after which it is looked whether batches and calls of the model are seen."""

NO_BATCH = "perf_callbacks: %s optimizer steps and no batch: iterate over perf.loader, not over the loader itself."
NO_CALL = (
    "perf_callbacks: %s optimizer steps, and the model given to measure() was never called: "
    "give it the model that the loop calls, wrapped or compiled as it is."
)
NO_STEP = (
    "perf_callbacks: the loop was over without a step of the optimizer given to measure(). "
    "If another one wraps it or is wrapped by it, give measure() the one whose step() updates the weights."
)
NO_WITH = (
    "perf_callbacks measures only inside of the with block: "
    "with measure(model=..., optimizer=..., loader=...) as perf: for batch in perf.loader: ..."
)


def check(model: object, optimizer: object, loader: object) -> None:
    """Refuse what can't be measured."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: got {_told(model)}, wanted the torch.nn.Module that the loop calls.")
    if not hasattr(getattr(optimizer, "optimizer", optimizer), "register_step_post_hook"):
        raise ConfigError(f"optimizer: got {_told(optimizer)}, wanted the torch.optim.Optimizer whose steps count.")
    if loader is not None and not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise ConfigError(f"loader: got {_told(loader)}, wanted an iterable of batches, or None.")


def _told(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


class LoopUsage(Observer):
    """Looks once whether the loop uses what it gave to `measure`."""

    def __init__(self, watch: LoopWatch, *, has_loader: bool) -> None:
        self._watch = watch
        self._has_loader = has_loader
        self._due = watch.recorder.step + AFTER

    @property
    def due(self) -> int:
        """The step at whose end it is looked."""
        return self._due

    def step_ended(self, step: int) -> None:
        """Say what is missing."""
        if step < self._due:
            return
        self._due = NEVER
        if self._has_loader and not self._watch.recorder.reader.has_read:
            log.warning(NO_BATCH, AFTER)
        if not self._watch.called:
            log.warning(NO_CALL, AFTER)

    def closed(self) -> None:
        """Say at the end of a loop that it had no steps, unless it failed."""
        recorder = self._watch.recorder
        used = self._watch.called or recorder.reader.has_read
        if used and recorder.failure is None and recorder.step == recorder.run.step:
            log.warning(NO_STEP)
