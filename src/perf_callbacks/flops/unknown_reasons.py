"""Why the FLOPs or the MFU of a fit are unknown."""

from collections import Counter
from collections.abc import Mapping

from perf_callbacks.kernel.batches.reader import BatchReader
from perf_callbacks.kernel.engine.ledger import reasons
from perf_callbacks.kernel.records.summary_parts import FlopsSummary


class UnknownFlopsReasons:
    """Collects the reasons why the FLOPs or the MFU of a fit are unknown."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.varies: str | None = None
        """Two steps of equal batch shapes but different work: all FLOPs of the fit are unknown."""
        self.counting: str | None = None  # why no step was counted
        self.peak: str | None = None  # why the device's peak FLOP/s are unknown
        self._causes: Counter[str] = Counter()

    def note(self, cause: str) -> None:
        self._causes[cause] += 1

    def summary(self, steps: int, known_steps: int, excluded: Mapping[str, int]) -> FlopsSummary:
        """`steps` are those in the metrics, `known` those of them with known FLOPs, `excluded` the others by reason."""
        mfu_unknown = self.peak if known_steps and self.varies is None else None
        return FlopsSummary(unknown=self._flops(steps, known_steps, excluded), mfu_unknown=mfu_unknown)

    def _flops(self, steps: int, known_steps: int, excluded: Mapping[str, int]) -> str | None:
        if self.varies is not None:
            return self.varies
        if not steps:
            return self.counting or f"all steps are excluded: {reasons(excluded)}"
        if known_steps == steps:
            return None
        return f"known for {known_steps:,} of {steps:,} steps: {self._cause()}" if known_steps else self._cause()

    def _cause(self) -> str:
        """Return the main cause: an unreadable batch, else why no step was counted, else the most frequent."""
        unreadable = self._reader.unreadable
        if UNREAD in self._causes and unreadable is not None:
            return f"the batch is a {unreadable} whose shapes can't be read"
        if self.counting is not None:
            return self.counting
        return max(self._causes, key=self._causes.__getitem__, default="no step was counted before them")


def checked(source: str, checked_step: int | None, step: int) -> str:
    """Describe the source of a fit's FLOPs, with the step of the last recount if it was long ago.

    >>> checked("counted", None, 4), checked("counted, scaled", 304, 700), checked("counted", 690, 700)
    ('counted once', 'counted, scaled (last checked at step 304)', 'counted')
    """
    if checked_step is None:
        return "counted once" if source == "counted" else source
    late = step - checked_step > UNCHECKED_STEPS
    return f"{source} (last checked at step {checked_step:,})" if late else source


UNCHECKED_STEPS = 100  # steps after the most recent recount, from which the summary names its step

UNREAD = "the shapes of its batches can't be read"

NO_BATCH = "these steps trained on no new batch; batches that a loop keeps, as with itertools.cycle, are not seen"

UNEVEN = "batches differ in shape and in their calls of the model"  # for example, one of the batches had no backward

NEW_SIZE = "batches have shapes that were not counted and don't scale"
