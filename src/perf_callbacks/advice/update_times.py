"""Times of an optimizer's own update, without clipping and `zero_grad`, which belong to the same stage."""

import functools
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any
from weakref import WeakMethod

import torch

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process.patches import Patches

SKIPPED, TIMED = 2, 20
"""Number of first updates without a time, which also make the optimizer's state, and number of timed updates."""


class UpdateTimes(Observer):
    """Times some calls of an optimizer's `step`.

    `step` is replaced, because a hook of the optimizer could not be removed while torch iterates over the hooks.
    """

    def __init__(self, recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
        self._clock, self._tape = recorder.clock, recorder.tape
        self._seen = 0
        self._seconds: list[float] = []
        self._patches = Patches()
        self._patches.method(optimizer, "step", self._timing)
        recorder.patches.add(self._patches.restore)

    def facts(self) -> Mapping[str, Any]:
        """Return the field `update_seconds` of `Facts`."""
        return {"update_seconds": median(self._seconds) if self._seconds else None}

    def _timing(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that times `step`. It keeps neither the fit nor this observer alive."""
        clock, ended, tracing = self._clock, WeakMethod(self._ended), torch.compiler.is_dynamo_compiling

        @functools.wraps(step)
        def timed(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if tracing():
                return step(optimizer, *args, **kwargs)
            began = clock()
            try:
                return step(optimizer, *args, **kwargs)
            finally:
                found = ended()
                if found is not None:
                    found(began)

        return timed

    def _ended(self, began: float) -> None:
        if len(self._seconds) == TIMED:
            return
        try:
            self._seen += 1
            if self._seen > SKIPPED:
                self._seconds.append(self._update(began, self._clock()))
            if len(self._seconds) == TIMED:
                self._patches.restore()
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            let_pass(error)

    def _update(self, began: float, ended: float) -> float:
        """Return the seconds of an update between two moments.

        In Lightning, forward and backward run in between, and the update begins with the stage `optimizer`. In a loop,
        hooks of the optimizer begin this stage and end the step.
        """
        pairs = self._tape.pairs
        for mark, time in zip(pairs[-2::-2], pairs[::-2], strict=False):
            if time is None:  # a garbage collection
                continue
            if time <= began:
                break
            if mark is Stage.OPTIMIZER:
                began = time
                break
            ended = time
        return ended - began
