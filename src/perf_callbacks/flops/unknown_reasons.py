"""Reasons why FLOPs or MFU are unknown: collected during a fit, reported at its end."""

from collections import Counter
from collections.abc import Mapping

from perf_callbacks.kernel.batches.reader import BatchReader
from perf_callbacks.kernel.engine.ledger import reasons
from perf_callbacks.kernel.records.summary_parts import FlopsSummary


class Unknowns:
    """Reasons for unknown FLOPs and MFU."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.varies: str | None = None
        """Difference found between the work of equal batches, which makes all FLOPs unknown."""
        self.counting: str | None = None
        """Reason why no step was counted."""
        self.peak: str | None = None
        """Reason why no peak is known."""
        self._causes: Counter[str] = Counter()

    def note(self, cause: str) -> None:
        """Count a step without FLOPs for this cause."""
        self._causes[cause] += 1

    def summary(self, steps: int, known: int, excluded: Mapping[str, int]) -> FlopsSummary:
        """Return the reasons why FLOPs and MFU of a fit are unknown.

        Args:
            steps: Number of included steps.
            known: Number of these steps with known FLOPs.
            excluded: Number of excluded steps, by reason.
        """
        mfu_unknown = self.peak if known and self.varies is None else None
        return FlopsSummary(unknown=self._flops(steps, known, excluded), mfu_unknown=mfu_unknown)

    def _flops(self, steps: int, known: int, excluded: Mapping[str, int]) -> str | None:
        if self.varies is not None:
            return self.varies
        if not steps:
            return self.counting or f"all steps are excluded: {reasons(excluded)}"
        if known == steps:
            return None
        return f"known for {known:,} of {steps:,} steps: {self._cause()}" if known else self._cause()

    def _cause(self) -> str:
        """Return the main cause: unreadable batches, else the reason not to count, else the most frequent cause."""
        unreadable = self._reader.unreadable
        if UNREAD in self._causes and unreadable is not None:
            return f"the batch is a {unreadable} whose shapes can't be read"
        if self.counting is not None:
            return self.counting
        return max(self._causes, key=self._causes.__getitem__, default="no step was counted before them")


def checked(source: str, checked_step: int | None, step: int) -> str:
    """Describe the sources of FLOPs. If the last check was long ago, add its step.

    >>> checked("counted", None, 4), checked("counted, scaled", 304, 700), checked("counted", 690, 700)
    ('counted once', 'counted, scaled (last checked at step 304)', 'counted')
    """
    if checked_step is None:
        return "counted once" if source == "counted" else source
    late = step - checked_step > UNCHECKED_STEPS
    return f"{source} (last checked at step {checked_step:,})" if late else source


UNCHECKED_STEPS = 100
"""If the last check of equal work is more than this many steps ago, the final card names the step of that check."""

UNREAD = "the shapes of its batches can't be read"
"""Cause for `note`: the batch can't be read."""

NO_BATCH = "these steps trained on no new batch"
"""Cause for `note`: the step trained on an earlier batch again, or on none."""

UNEVEN = "batches differ in shape and in their calls of the model"
"""Cause for `note`: batches of several shapes had different calls: for example, one of them had no backward."""

NEW_SIZE = "batches have shapes that were not counted and don't scale"
"""Cause for `note`: the batch has another size than all counted batches, and no law of growth is certain."""
