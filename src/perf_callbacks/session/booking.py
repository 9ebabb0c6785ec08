"""Tell which operations of a counted step are training work: those in its forward, backward and optimizer."""

import sys
from types import FrameType

from torch import is_grad_enabled, nn

from perf_callbacks.core.marks import Course
from perf_callbacks.core.stages import Stage
from perf_callbacks.flops.phases import in_backward

_FORWARD, _TRAINING = Stage.FORWARD, (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER)
_NEVER = (Stage.DATA, Stage.ASIDE)
_BETWEEN = (Stage.OTHER, Stage.UNDECIDED)


class Booking:
    """Tells the counter of one step, operation by operation, what to count.

    Trainers announce each forward. A loop need not: it may call a part of the model, or a model that nobody watches.
    There, calls of modules in training mode that build a graph are training work too, and what runs without gradients
    between a forward and its backward, outside of any module, is not.
    """

    def __init__(self, course: Course, *, announced: bool) -> None:
        self.course = course
        """Follows the marks of the step."""
        self._announced = announced

    def __call__(self) -> bool:
        """Tell whether the operation that is being dispatched is training work."""
        stage = self.course.stage
        if stage in _TRAINING:
            return self._announced or stage is not _FORWARD or is_grad_enabled() or _calling() is not None
        if self._announced or stage in _NEVER:
            return False
        if in_backward():
            return True
        module = _calling() if is_grad_enabled() else None
        return module is not None and module.training

    def between(self) -> bool:
        """Tell whether the thread is between the stages of a step."""
        return self.course.stage in _BETWEEN


def _calling() -> nn.Module | None:
    """The outermost module whose call led here."""
    found: nn.Module | None = None
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 the one way to the caller
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_call_impl" and code.co_filename.endswith("module.py"):
            module = frame.f_locals.get("self")
            found = module if isinstance(module, nn.Module) else found
        frame = frame.f_back
    return found
