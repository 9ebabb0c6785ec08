"""Base class of the object that tells the engine the FLOPs of each step."""

from collections.abc import Mapping, Sequence

from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.engine.marks import Calls
from perf_callbacks.kernel.engine.steps import NEVER, StepFlops, Totals
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.summary_parts import FlopsSummary

LOOK_STEPS = 50
"""Most steps between two calls of `look`, if the fit has a device timeline."""


class WorkModel:
    """FLOPs of a step, from the shapes of its batches and its forwards and backwards. This one knows none."""

    trainable_changed = False
    """True if the model has changed since `settle`: batches of the same shape may then have different FLOPs."""

    @property
    def counted(self) -> Flops | None:
        return None

    def look_after(self, step: int) -> int:  # noqa: ARG002 for work models that look, like the others
        """Return the step at whose end the engine must call `look` next. It last did so after `step`."""
        return NEVER

    def look(self, step: int) -> None:
        """Check at the end of step `step` whether a change of the model has changed the FLOPs of steps."""

    def step_flops(self, shapes: Sequence[ShapeKey], calls: Calls, step: int) -> StepFlops | None:  # noqa: ARG002 as above
        return None

    def settle(self) -> None:
        """Reset `trainable_changed`. The engine calls this after it has asked for the FLOPs of each finished step."""

    def metrics(self, totals: Totals) -> Mapping[str, float | None]:  # noqa: ARG002 as above
        """Return FLOP metrics, under their names in `METRICS`; none without known FLOPs."""
        return {}

    def summary(self, included: Totals, excluded: Mapping[str, int]) -> FlopsSummary | None:  # noqa: ARG002 as above
        """None: the fit counts no FLOPs. `excluded` has the number of excluded steps, by reason."""
        return None
