"""One warning if the rows of a fit stay empty."""

import logging

EMPTY_ROWS = 3
"""Number of empty rows in sequence that cause the warning. A single empty row is no loss."""

log = logging.getLogger("perf_callbacks")


class EmptyRows:
    """Counts empty rows in sequence."""

    def __init__(self) -> None:
        self._count, self._logged = 0, False

    def end(self) -> None:
        """Begin to count anew: a row has metrics."""
        self._count = 0

    def add(self, step: int, reasons: str | None) -> None:
        """Count an empty row, and log the reasons after `EMPTY_ROWS` of them. None: the row had no step at all."""
        self._count += reasons is not None
        if self._count == EMPTY_ROWS and not self._logged:
            self._logged = True
            log.warning(
                "perf_callbacks: no metrics at step %s: all steps since the last row are excluded (%s).", step, reasons
            )
