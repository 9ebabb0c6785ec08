"""Base class of the object that tells the engine the FLOPs of each step."""

from collections.abc import Mapping, Sequence

from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.engine.marks import Calls
from perf_callbacks.kernel.engine.steps import NEVER, StepFlops, Totals
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.summary_parts import FlopsSummary

LOOK_STEPS = 50
"""Maximum number of steps between two calls of `look`, if the fit has a device timeline."""


class WorkModel:
    """Gives the FLOPs of a step, from the shapes of its batches and its numbers of forwards and backwards.

    This base class knows no FLOPs.
    """

    trainable_changed = False
    """True if the model has changed since the most recent call of `settle`. If the model has changed, two steps with
    batches of the same shape may have different FLOPs."""

    @property
    def counted(self) -> Flops | None:
        """Result of the last FLOP count. None means that FLOPs were not counted yet."""
        return None

    def look_after(self, step: int) -> int:  # noqa: ARG002 for work models that look, like the others
        """Return the step at whose end the engine must call `look` next.

        `step` is the number of the step after which the engine called `look` most recently.
        """
        return NEVER

    def look(self, step: int) -> None:
        """Check at the end of step `step` whether a change of the model has changed the FLOPs of steps."""

    def of(self, shapes: Sequence[ShapeKey], calls: Calls, step: int) -> StepFlops | None:  # noqa: ARG002 as above
        """Return the FLOPs of a step with batches of these shapes. None: the FLOPs are unknown."""
        return None

    def settle(self) -> None:
        """Reset `trainable_changed`.

        The engine calls `settle` after it has called `of` for each finished step.
        """

    def metrics(self, totals: Totals) -> Mapping[str, float | None]:  # noqa: ARG002 as above
        """Return the FLOP metrics of steps, under their names in `METRICS`.

        Without known FLOPs, the result is empty.
        """
        return {}

    def summary(self, included: Totals, excluded: Mapping[str, int]) -> FlopsSummary | None:  # noqa: ARG002 as above
        """Return the FLOPs of the included steps, or None if the fit counts no FLOPs.

        `excluded` has the number of excluded steps, by reason.
        """
        return None
