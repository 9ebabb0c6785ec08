"""Decide which operations of a counted step are training work: its forward, backward and optimizer."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, is_grad_enabled, nn

from perf_callbacks.flops.counting.counter import Filter
from perf_callbacks.flops.counting.operands import matrices
from perf_callbacks.flops.counting.phases import callers, in_backward
from perf_callbacks.kernel.engine.marks import StageTracker
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.tape import Tape

_FORWARD = Stage.FORWARD
_TRAINING = (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER)
_NEVER = (Stage.DATA, Stage.ASIDE)
_BETWEEN = (Stage.OTHER, Stage.UNDECIDED)


class TrainingFilter(Filter):
    """Decides which operations of a step are counted.

    Trainers announce each forward. A plain loop may call a part of the model, or an unwatched model, unannounced. In a
    loop, calls of modules in training mode that build a graph are training work too. Generation and rewards are not
    training work. In a loop, operations without gradients outside of any module are not training work either, even
    between a forward and its backward.
    """

    def __init__(self, tape: Tape, *, announced: bool) -> None:
        self.stage_tracker: StageTracker = tape.follow()
        """Follows the marks of the step."""
        self._tape = tape
        self._announced = announced
        self.unannounced = False
        """True: a backward ran that the trainer did not announce."""
        self.apart: Counter[str] = Counter()
        """Number of uncounted calls of models, such as a teacher, by name: without gradients, outside of a forward.

        A call is part of the step's work only if a backward follows before the next batch is fetched.
        """
        self._waiting: Counter[str] = Counter()
        """Calls that move to `apart` if a backward follows."""
        self._fetches = self._backwards = 0

    def is_training_work(self) -> bool:
        """Return True if the operation being dispatched is training work."""
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
        """Settle earlier calls of modules, and store the call that has ended if its work is not counted."""
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
        """Move waiting calls to `apart` if a backward followed. Drop calls from before the last fetch of a batch."""
        if self._waiting and self.stage_tracker.calls.backwards > self._backwards:
            if self.stage_tracker.fetches_at_backward == self._fetches:
                self.apart += self._waiting
            self._waiting.clear()

    def is_between_stages(self) -> bool:
        """Return True if the thread is between the stages of a step."""
        return self.stage_tracker.stage in _BETWEEN


def _calling() -> nn.Module | None:
    """Return the outermost module whose call led here."""
    found: nn.Module | None = None
    for frame in callers():
        code = frame.f_code
        if code.co_name == "_call_impl" and code.co_filename.endswith("module.py"):
            module = frame.f_locals.get("self")
            found = module if isinstance(module, nn.Module) else found
    return found


def _generates() -> bool:
    """Return True within `generate` of transformers, whose calls of the model train nothing."""
    return any(
        frame.f_code.co_name == "generate" and Path(frame.f_code.co_filename).parts[-2:] == ("generation", "utils.py")
        for frame in callers()
    )


def _requires_grad(result: object, depth: int = 3) -> bool:
    """Return True if a tensor in the result of a module requires gradients."""
    if isinstance(result, Tensor):
        return result.requires_grad
    if not depth:
        return False
    parts = result if isinstance(result, tuple | list) else getattr(result, "__dict__", {}).values()
    return any(_requires_grad(part, depth - 1) for part in (result.values() if isinstance(result, Mapping) else parts))


def _multiplies(module: nn.Module) -> bool:
    """Return True if a module, or a part of the module, multiplies a matrix of weights."""
    return any(matrices(part) for part in module.modules())
