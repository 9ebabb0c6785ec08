"""Times of an optimizer's own update, without clipping and `zero_grad`, which belong to the same stage."""

import functools
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any
from weakref import WeakMethod

import torch

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.engine.steps import NEVER, WATCHED_BLOCK, Step
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.kernel.records.fit_records import Gc

SKIPPED, TIMED = 2, 20
"""Number of first updates that are not timed, since they create the optimizer's state, and number of timed updates."""


OPTIMIZER = STAGES.index(Stage.OPTIMIZER)


class UpdateTimes(Observer):
    """Compares some calls of an optimizer's `step` with the stage `optimizer` of the same steps.

    A machine may be slower later, so the seconds of these calls alone say little about the run. The observer
    replaces `step`, because a hook of the optimizer could not be removed while torch iterates over the hooks.
    """

    def __init__(self, recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
        self._recorder = recorder
        self._seen = 0
        self._seconds: list[float] = []
        self._stages: list[float] = []
        self._first, self._last = NEVER, NEVER  # numbers of the steps with the first and the last timed call
        self._patches = Patches()
        self._patches.method(optimizer, "step", self._timing)
        recorder.patches.add(self._patches.restore)

    @property
    def watching(self) -> bool:
        """True: calls are timed, or the engine may still have to read a step with a timed call."""
        return self._first != NEVER and self._recorder.step <= self._last + 2 * WATCHED_BLOCK

    def steps_measured(self, steps: Sequence[Step], pauses: Sequence[Gc]) -> None:  # noqa: ARG002 times suffice
        """Collect the times of the stage in the steps with timed calls."""
        self._stages += [
            step.seconds[OPTIMIZER]
            for step in steps
            if step.seconds is not None and step.excluded is None and self._first <= step.number <= self._last
        ]

    def facts(self) -> Mapping[str, Any]:
        """Return the field `update_part` of `Facts`."""
        stage = median(self._stages) if self._stages else 0.0
        return {"update_part": min(1.0, median(self._seconds) / stage) if self._seconds and stage > 0 else None}

    def _timing(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that times `step`. It keeps neither the fit nor this observer alive."""
        clock, ended, tracing = self._recorder.clock, WeakMethod(self._ended), torch.compiler.is_dynamo_compiling

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
                self._seconds.append(self._update(began, self._recorder.clock()))
                self._first = min(self._first, self._recorder.step)
            if len(self._seconds) == TIMED:
                self._last = self._recorder.step
                self._patches.restore()
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            let_pass(error)

    def _update(self, began: float, ended: float) -> float:
        """Return the seconds of an update between two moments.

        In Lightning, forward and backward run in between, and the update begins with the stage `optimizer`. In a loop,
        hooks of the optimizer begin this stage and end the step.
        """
        pairs = self._recorder.tape.pairs
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
