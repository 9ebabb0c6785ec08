"""Times of an optimizer's own update, without clipping, hooks and `zero_grad`, which belong to the same stage."""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any
from weakref import WeakMethod

import torch

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.foreign_errors import let_pass

SKIPPED, TIMED = 2, 20
"""Updates that aren't timed, because the first one makes the optimizer's state, and updates that are timed."""

NOTHING = slice
"""A function in C that takes the three arguments of a hook, and does nothing with them."""


class UpdateTimes(Observer):
    """Times some updates of an optimizer by its own hooks."""

    def __init__(self, recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
        self._clock, self._tape = recorder.clock, recorder.tape
        self._began: float | None = None
        self._seen = 0
        self._seconds: list[float] = []
        self._first = optimizer.register_step_pre_hook(_weakly(self._begins))
        self._last = optimizer.register_step_post_hook(_weakly(self._ends))
        recorder.patches.add(self._first.remove, self._last.remove)

    def facts(self) -> Mapping[str, Any]:
        """Return the field `update_seconds` of `Facts`."""
        return {"update_seconds": median(self._seconds) if self._seconds else None}

    def _begins(self, _optimizer: Any) -> None:
        self._began = self._clock()

    def _ends(self, optimizer: Any) -> None:
        now, began, self._began = self._clock(), self._began, None
        self._seen += 1
        if began is None or self._seen <= SKIPPED:
            return
        self._seconds.append(self._update(began, now))
        if len(self._seconds) == TIMED:
            self._first.remove()
            # torch iterates over these hooks now, so the hook can't be removed
            optimizer._optimizer_step_post_hooks[self._last.id] = NOTHING  # noqa: SLF001 there is no public name

    def _update(self, began: float, ended: float) -> float:
        """Return the seconds of an update between two moments.

        In Lightning, forward and backward run in between, and the update begins with the stage `optimizer`. In a loop,
        another hook may have ended the step before.
        """
        pairs = self._tape.pairs
        for mark, time in zip(pairs[-2::-2], pairs[::-2], strict=False):
            if time <= began:
                break
            if mark is Stage.OPTIMIZER:
                began = time
                break
            ended = time
        return ended - began


def _weakly(method: Callable[[Any], None]) -> Callable[..., None]:
    """Return a hook that keeps neither the fit nor its observers alive, and does nothing in a compiled update."""
    reference, tracing = WeakMethod(method), torch.compiler.is_dynamo_compiling

    def hook(optimizer: Any, *_: object) -> None:
        if tracing():
            return
        try:
            found = reference()
            if found is not None:
                found(optimizer)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            let_pass(error)

    return hook
