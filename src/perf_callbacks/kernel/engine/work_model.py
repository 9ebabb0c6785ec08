"""The engine's source of FLOPs. Without a work model the FLOPs of all steps are unknown."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.engine.marks import Calls
from perf_callbacks.kernel.engine.steps import NEVER, StepFlops, Totals
from perf_callbacks.kernel.records.fit_records import Flops
from perf_callbacks.kernel.records.summary_parts import FlopsSummary

LOOK_STEPS = 50
"""The engine calls `look` at least once in this many steps, unless `look_after` says otherwise."""


class WorkModel(Protocol):
    """Knows the FLOPs of a step by the shapes of its batches and the calls of the model."""

    @property
    def counted(self) -> Flops | None:
        """The last count. None: there was no count yet."""

    @property
    def trainable_changed(self) -> bool:
        """True: the model has changed since the last `settle`, so equal steps may have unequal FLOPs."""
        ...

    def look_after(self, step: int) -> int:
        """Return the step after which the engine calls `look` again, if its last call was after `step`."""
        ...

    def look(self, step: int) -> None:
        """Check after a step if the model has changed in a way that changes FLOPs."""

    def of(self, shapes: Sequence[ShapeKey], calls: Calls, step: int) -> StepFlops | None:
        """Return the FLOPs of a step with batches of these shapes. None: unknown."""

    def settle(self) -> None:
        """Accept the FLOPs of the steps up to the last `look`."""

    def metrics(self, totals: Totals) -> Mapping[str, float | None]:
        """Compute the metrics of steps, by name without prefix. Empty: their FLOPs are unknown."""
        ...

    def summary(self, included: Totals, excluded: Mapping[str, int]) -> FlopsSummary | None:
        """Return the FLOPs of the included steps. `excluded` has the number of other steps, by reason.

        None: the fit counts no FLOPs.
        """


class UnknownWork:
    """The work model of a fit that counts no FLOPs."""

    counted = None
    trainable_changed = False

    def look_after(self, step: int) -> int:  # noqa: ARG002 as in `WorkModel`, like the others
        """Return `NEVER`."""
        return NEVER

    def look(self, step: int) -> None:
        """Do nothing."""

    def of(self, shapes: Sequence[ShapeKey], calls: Calls, step: int) -> None:
        """Return None."""

    def settle(self) -> None:
        """Do nothing."""

    def metrics(self, totals: Totals) -> dict[str, float | None]:  # noqa: ARG002 as above
        """Return no metrics."""
        return {}

    def summary(self, included: Totals, excluded: Mapping[str, int]) -> None:
        """Return None."""
