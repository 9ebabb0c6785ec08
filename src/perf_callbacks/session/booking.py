"""Tell which operations of a counted step are training work: those in its forward, backward and optimizer."""

import sys
from collections import Counter
from types import FrameType

from torch import is_grad_enabled, nn

from perf_callbacks.core.marks import Course
from perf_callbacks.core.stages import Stage
from perf_callbacks.core.tape import Tape
from perf_callbacks.flops.phases import in_backward

_FORWARD = Stage.FORWARD
_TRAINING = (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER)
_NEVER = (Stage.DATA, Stage.ASIDE)
_BETWEEN = (Stage.OTHER, Stage.UNDECIDED)


class Booking:
    """Tells the counter of one step, operation by operation, what to count.

    Trainers announce each forward. A loop need not: it may call a part of the model, or a model that nobody watches.
    There, calls of modules in training mode that build a graph are training work too, and what runs without gradients
    between a forward and its backward, outside of any module, is not. Generation and rewards never are.
    """

    def __init__(self, tape: Tape, *, announced: bool) -> None:
        self.course: Course = tape.follow()
        """Follows the marks of the step."""
        self._tape = tape
        self._announced = announced
        self.unannounced = False
        """A backward ran that the trainer did not announce."""
        self.apart: Counter[str] = Counter()
        """Operations in modules with weights that ran without gradients outside of a forward: of a teacher, perhaps.

        Without a backward before the next batch is fetched, they were no part of the step's work.
        """
        self._waiting: Counter[str] = Counter()
        """Such operations of which no backward has followed yet."""
        self._fetches = self._backwards = 0
        self._weighty: dict[int, bool] = {}

    def __call__(self) -> bool:
        """Tell whether the operation that is being dispatched is training work."""
        stage = self.course.stage
        if stage in _TRAINING:
            self.settle()
            return self._announced or stage is not _FORWARD or is_grad_enabled() or _calling() is not None
        if stage in _NEVER:
            return False
        if in_backward():
            self.unannounced = self._announced
            return not self._announced
        if self._tape.part is not None or (self._announced and is_grad_enabled()):
            return False
        module = _calling()
        if module is None or is_grad_enabled():
            return module is not None and module.training
        if self._has_weights(module) and sys._getframe(2).f_code.co_name != "_see":  # noqa: SLF001 more than its begin
            self._note_apart(module)
        return False

    def _note_apart(self, module: nn.Module) -> None:
        if self.course.fetches != self._fetches:
            self._waiting.clear()
        self._fetches, self._backwards = self.course.fetches, self.course.calls.backwards
        self._waiting[f"{type(module).__name__} without gradients"] += 1

    def settle(self) -> None:
        """Add what ran apart to the work of the backward that followed, unless a batch was fetched between them."""
        if self._waiting and self.course.calls.backwards > self._backwards:
            if self.course.fetches == self._fetches:
                self.apart += self._waiting
            self._waiting.clear()

    def _has_weights(self, module: nn.Module) -> bool:
        if id(module) not in self._weighty:
            self._weighty[id(module)] = any(one.dim() > 1 for one in module.parameters())
        return self._weighty[id(module)]

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
