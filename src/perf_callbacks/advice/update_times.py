"""Times of an optimizer's own update, without clipping and `zero_grad`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any
from weakref import WeakMethod

import torch
from typing_extensions import override

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.engine.steps import NEVER, WATCHED_BLOCK, Step
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process.patches import Patches

SKIPPED, TIMED = 2, 20
"""Updates. The first ones take longer, because they create the optimizer's state."""


OPTIMIZER = STAGES.index(Stage.OPTIMIZER)


class UpdateTimes(Observer):
    """Compares some calls of an optimizer's `step` with the stage `optimizer` in the same training steps.

    So the comparison stays valid if the machine becomes slower later. The method is replaced, because torch can't
    remove a hook while hooks run.
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
    @override
    def watching(self) -> bool:
        return self._first != NEVER and self._recorder.step <= self._last + 2 * WATCHED_BLOCK

    @override
    def steps_measured(self, steps: Sequence[Step]) -> None:
        self._stages += [
            step.seconds[OPTIMIZER]
            for step in steps
            if step.seconds is not None and step.excluded is None and self._first <= step.number <= self._last
        ]

    @override
    def facts(self) -> Mapping[str, Any]:
        stage = median(self._stages) if self._stages else 0.0
        return {"update_part": min(1.0, median(self._seconds) / stage) if self._seconds and stage > 0 else None}

    def _timing(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The wrapper keeps neither the fit nor this observer alive."""
        clock, ended, tracing = self._recorder.clock, WeakMethod(self._ended), torch.compiler.is_dynamo_compiling

        @functools.wraps(step)
        def timed(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if tracing():
                return step(optimizer, *args, **kwargs)
            began = clock()
            try:
                return step(optimizer, *args, **kwargs)
            finally:
                update = ended()
                if update is not None:
                    update(began)

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
        """Return the seconds of the update in a call of `step` that began and ended at these times.

        In Lightning, `step` also runs forward and backward, so the update begins with the stage `optimizer`. In a plain
        loop, one hook of the optimizer begins this stage, and another ends the step; the update lies between them.
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
