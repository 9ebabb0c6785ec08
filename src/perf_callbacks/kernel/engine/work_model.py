"""The engine's source of FLOPs."""

from collections.abc import Mapping, Sequence

from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.engine.marks import Calls
from perf_callbacks.kernel.engine.steps import NEVER, StepFlops, Totals
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.summary_parts import FlopsSummary

LOOK_STEPS = 50
"""With a device timeline, the engine calls `look` at least once in this many steps."""


class WorkModel:
    """FLOPs of a step by the shapes of its batches and the calls of the model. This base class knows no FLOPs."""

    trainable_changed = False
    """True: the model has changed since the last `settle`, so equal steps may have unequal FLOPs."""

    @property
    def counted(self) -> Flops | None:
        """The last count. None: there was no count yet."""
        return None

    def look_after(self, step: int) -> int:  # noqa: ARG002 for work models that look, like the others
        """Return the step after which the engine calls `look` again, if its last call was after `step`."""
        return NEVER

    def look(self, step: int) -> None:
        """Check after a step if the model has changed in a way that changes FLOPs."""

    def of(self, shapes: Sequence[ShapeKey], calls: Calls, step: int) -> StepFlops | None:  # noqa: ARG002 as above
        """Return the FLOPs of a step with batches of these shapes. None: unknown."""
        return None

    def settle(self) -> None:
        """Reset `trainable_changed`, because the steps up to the last `look` have their FLOPs."""

    def metrics(self, totals: Totals) -> Mapping[str, float | None]:  # noqa: ARG002 as above
        """Compute the metrics of steps, by their names in `METRICS`. Empty: the FLOPs of the steps are unknown."""
        return {}

    def summary(self, included: Totals, excluded: Mapping[str, int]) -> FlopsSummary | None:  # noqa: ARG002 as above
        """Return the FLOPs of the included steps. `excluded` has the number of other steps, by reason.

        None: the fit counts no FLOPs.
        """
        return None
