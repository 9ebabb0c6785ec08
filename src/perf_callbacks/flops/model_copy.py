"""Copy of the model on fake tensors, whose FLOPs are the model's number if a count can't see all of them."""

from collections.abc import Mapping

from torch import nn

from perf_callbacks.flops import offline
from perf_callbacks.flops.by_shape.shape_counts import SAME
from perf_callbacks.flops.counted_step import CountedStep
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.offline import Example
from perf_callbacks.flops.work import Work
from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.failures import guard, logs
from perf_callbacks.kernel.fit.recorder import Recorder, log


class ModelCopy:
    """Counts a forward and a backward for batches of given shapes, without running the model."""

    def __init__(self, recorder: Recorder, model: nn.Module) -> None:
        self._recorder = recorder
        self._model: nn.Module | None = model

    def close(self) -> None:
        self._model = None

    def count(self, example: Example) -> FlopCounter | None:
        """None: the copy can't run."""
        with guard(
            logs(log.info, "perf_callbacks could not count on fake tensors: %s.")
        ):  # a forward may raise any error
            if self._model is not None:
                with self._recorder.tape.paused():
                    return offline.count(self._model, example, self._recorder.autocast)
        return None

    def closed_form(self, example: Example) -> Work | None:
        return None if self._model is None else offline.closed_form(self._model, example, self._recorder.autocast)

    def check(self, step: CountedStep, examples: Mapping[ShapeKey, Example]) -> FlopCounter | None:
        """Return the copy's count if it has more FLOPs. If they are equal, the compiler left all products to torch."""
        shapes = {batch.shape for batch in step.batches}
        example = examples.get(shapes.pop()) if step.missing and len(shapes) == 1 else None
        copied = None if example is None else self.count(example)
        if copied is None:
            return None
        expected, counted = copied.work().model_flops * len(step.batches), step.total.model_flops
        if expected > counted * (1 + SAME):
            return copied
        if counted <= expected * (1 + SAME):
            step.missing.clear()
        return None
