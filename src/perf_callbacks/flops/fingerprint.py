"""Cheap fingerprint of a step's work: the multiplications of its modules, from the sizes of outputs and weights.

It leaves out attention and the backward, but is equal for equal work, and needs one hook call per module. A count
observes each operation: in three models on a CPU, it added 13 to 16 times as much to a step, which metrics leave out.
"""

from threading import get_ident
from typing import Any
from weakref import finalize

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as modules
from torch.utils.hooks import RemovableHandle

from perf_callbacks.flops.by_shape.shaped_work import ShapedWork
from perf_callbacks.flops.counting.operands import matrices
from perf_callbacks.flops.counting.phases import in_backward
from perf_callbacks.flops.training_filter import TrainingFilter
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process.compiler import compiles, off_compilation, on_compilation

LOOK_PART = 4
"""The next comes n / `LOOK_PART` steps after step n, so that short and long fits both soon notice changed work."""

LOOK_EVERY = 47  # prime, so that fingerprints don't always hit the same step of a repeating schedule

_WITH_BACKWARD = 3  # forward and backward of a module have three times the multiplications of its forward


class WorkFingerprint:
    """Adds up the multiplications of all modules that run as training work between `open` and `close`."""

    def __init__(self) -> None:
        self.products = 0  # by modules' own weights; three times if the output requires gradients
        self._training: TrainingFilter | None = None
        self._thread = 0
        self._handle = RemovableHandle(modules._global_forward_hooks)  # noqa: SLF001 there is no public name

    def open(self, training: TrainingFilter) -> None:
        self.products, self._training, self._thread = 0, training, get_ident()
        on_compilation(self._compiles)  # a hook would make modules that were compiled with it compile again
        modules._global_forward_hooks[self._handle.id] = self._see  # noqa: SLF001 as above

    def close(self) -> None:
        off_compilation(self._compiles)
        self._handle.remove()
        self._training = None  # keeps no fit alive

    def _see(self, module: nn.Module, _args: object, result: Any) -> None:
        # A model may be compiled, exported or traced in the middle of a step.
        if is_dynamo_compiling() or torch._C._get_tracing_state() is not None:  # noqa: SLF001 as `torch.jit.is_tracing`
            return
        try:
            training = self._training
            if training is None or get_ident() != self._thread:
                return
            training.module_ended(module, result)
            weights = matrices(module)
            first = result[0] if isinstance(result, tuple | list) and result else result
            if weights and isinstance(first, torch.Tensor) and not in_backward() and training.is_training_work():
                products = sum(first.numel() * weight.numel() // max(weight.shape[0], 1) for weight in weights)
                self.products += products * (_WITH_BACKWARD if first.requires_grad else 1)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._abandon()
            let_pass(error)

    def _abandon(self) -> None:
        self.close()
        self.products = 0

    def _compiles(self, *_: object) -> None:
        self._handle.remove()
        self._training, self.products = None, 0


class WorkFingerprints:
    """Compares the fingerprints of equal batch shapes. There are none in compiled programs: a hook would recompile."""

    def __init__(self, recorder: Recorder, work: ShapedWork) -> None:
        self._recorder = recorder
        self._work = work
        self._fingerprint = WorkFingerprint()
        self.training: TrainingFilter | None = None  # of the step whose fingerprint is being taken
        self._own = False  # True: `begin` made the training; False: it belongs to a count
        self.after = 0  # completed steps of the fit after which the next one is taken
        recorder.patches.add(self._fingerprint.close)
        finalize(self, self._fingerprint.close).atexit = False

    def begin(self, steps: int, training: TrainingFilter | None, announced: bool) -> None:  # noqa: FBT001 as in `TrainingFilter`
        """Begin if one is due after `steps` completed steps. `training` is the count's filter, if there is a count."""
        if steps < self.after or not self._recorder.active:
            return
        self.after = steps + max(1, min(steps // LOOK_PART, LOOK_EVERY))
        if compiles():
            return
        self._own = training is None
        self.training = training or TrainingFilter(self._recorder.tape, announced=announced)
        self._fingerprint.open(self.training)

    def end(self, step: int) -> None:
        """Compare with an earlier step. A partial step is ignored."""
        training, products = self.training, self._fingerprint.products
        self.drop()
        if training is not None and not any(training.stage_tracker.earlier):
            shapes = [batch.shape for batch in self._recorder.engine.batches]
            self._work.compare_fingerprint(shapes, training.stage_tracker.calls, products, step)
            if self._work.trainable_changed:
                self._recorder.engine.plan()  # the next steps are checked too

    def drop(self) -> None:
        if self.training is not None:
            self.training = None
            self._fingerprint.close()
            if self._own:
                self._recorder.tape.unfollow()
