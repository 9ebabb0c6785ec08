"""Waits for the first batch of each epoch but the first: loaders without persistent workers start new ones."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.steps import Step
from perf_callbacks.kernel.fit.recorder import Recorder


class EpochWaits(Observer):
    """Adds up the waits for data in the first step of each epoch, except the first epoch."""

    def __init__(self, recorder: Recorder) -> None:
        self._epochs = 0
        self._seconds = self._seconds_in_rows = 0.0
        self._recorder = recorder
        self._last: set[int] = set()  # steps that ended an epoch, each until the following step is measured

    @property
    @override
    def watching(self) -> bool:
        return bool(self._last)

    @override
    def loader_left(self, *, exhausted: bool) -> None:
        if exhausted:
            self.epoch_ended()

    @override
    def epoch_ended(self) -> None:
        self._last.add(self._recorder.step)

    @override
    def steps_measured(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if step.number - 1 in self._last and step.seconds is not None:
                self._epochs += 1
                self._seconds += step.seconds[Stage.DATA]
                self._seconds_in_rows += step.seconds[Stage.DATA] if step.excluded is None else 0.0
        if steps:
            self._last = {number for number in self._last if number >= steps[-1].number}

    @override
    def facts(self) -> dict[str, Any]:
        steps = max(1, self._recorder.step - self._recorder.run.step)
        return {
            "epochs": self._epochs,
            "epoch_wait_seconds": self._seconds / steps,
            "epoch_wait_in_rows": self._seconds_in_rows / steps,
        }
