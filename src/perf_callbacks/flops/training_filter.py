"""Decide which operations of a counted step are training work: forward, backward and optimizer."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, is_grad_enabled, nn

from perf_callbacks.flops.counting.operands import matrices
from perf_callbacks.flops.counting.phases import in_backward
from perf_callbacks.kernel.engine.marks import StageTracker
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.process.stacks import callers

_FORWARD = Stage.FORWARD
_TRAINING = (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER)
_NEVER = (Stage.DATA, Stage.ASIDE)
_BETWEEN = (Stage.OTHER, Stage.UNDECIDED)


class TrainingFilter:
    """Decides which operations of a step are counted as training work.

    A trainer announces each forward. In a plain loop, an unannounced call counts if the module is in training mode and
    gradients are enabled, without text generation and rewards; in its forward, operations don't count if gradients are
    disabled and no module is running.
    """

    def __init__(self, tape: Tape, *, announced: bool) -> None:
        self.stage_tracker: StageTracker = tape.follow()
        self._tape = tape
        self._announced = announced
        self.unannounced = False  # a backward ran that the trainer did not announce
        self.apart: Counter[str] = Counter()
        """Uncounted calls, such as "Teacher without gradients", that a backward follows before the next batch is
        fetched."""
        self._waiting: Counter[str] = Counter()  # they move to `apart` if a backward follows
        self._fetches = self._backwards = 0

    def is_training_work(self) -> bool:
        stage = self.stage_tracker.stage
        if stage in _TRAINING:
            return self._announced or stage is not _FORWARD or is_grad_enabled() or _calling() is not None
        if stage in _NEVER:
            return False
        if in_backward():
            self.unannounced = self._announced
            return not self._announced
        if self._announced or not is_grad_enabled():
            return False
        module = _calling()
        return module is not None and module.training

    def module_ended(self, module: nn.Module, result: object) -> None:
        self.settle()
        stage = self.stage_tracker.stage
        if stage in _TRAINING or stage is Stage.ASIDE or self._tape.part is not None or in_backward():
            return
        counted = not self._announced and stage in _BETWEEN and is_grad_enabled() and module.training
        if counted or _calling() is not module or _generates() or _requires_grad(result) or not _multiplies(module):
            return
        if self.stage_tracker.fetches != self._fetches:
            self._waiting.clear()
        self._fetches, self._backwards = self.stage_tracker.fetches, self.stage_tracker.calls.backwards
        self._waiting[f"{type(module).__name__} without gradients"] += 1

    def settle(self) -> None:
        """Move waiting calls to `apart` if a backward followed; drop them if a batch was fetched in between."""
        if self._waiting and self.stage_tracker.calls.backwards > self._backwards:
            if self.stage_tracker.fetches_at_backward == self._fetches:
                self.apart += self._waiting
            self._waiting.clear()

    def is_between_stages(self) -> bool:
        return self.stage_tracker.stage in _BETWEEN


def _calling() -> nn.Module | None:
    outermost: nn.Module | None = None
    for frame in callers():
        code = frame.f_code
        if code.co_name == "_call_impl" and code.co_filename.endswith("module.py"):
            module = frame.f_locals.get("self")
            outermost = module if isinstance(module, nn.Module) else outermost
    return outermost


def _generates() -> bool:
    """Within `generate` of transformers: generating text is not training."""
    return any(
        frame.f_code.co_name == "generate" and Path(frame.f_code.co_filename).parts[-2:] == ("generation", "utils.py")
        for frame in callers()
    )


def _requires_grad(result: object, depth: int = 3) -> bool:
    if isinstance(result, Tensor):
        return result.requires_grad
    if not depth:
        return False
    parts = result if isinstance(result, tuple | list) else getattr(result, "__dict__", {}).values()
    return any(_requires_grad(part, depth - 1) for part in (result.values() if isinstance(result, Mapping) else parts))


def _multiplies(module: nn.Module) -> bool:
    return any(matrices(part) for part in module.modules())
