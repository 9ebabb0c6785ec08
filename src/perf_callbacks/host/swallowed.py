"""Exceptions of signal handlers that Python would only print, because they rise in a callback of ours.

Python swallows what is raised in a callback of the collector or of a weak reference, and in a finalizer. A signal that
arrives during a collection is handled in the first Python frame after it, which is such a callback of ours. While a fit
lasts, `sys.unraisablehook` hands these exceptions to the fit, which raises them at the end of its step.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from perf_callbacks.core.foreign_errors import of_handler

Heard = Callable[[BaseException], object]

_OURS = str(Path(__file__).parents[1])
_STANDARD = ("weakref.py", "_weakrefset.py")
"""Files of the standard library whose callbacks run for weak references of ours."""


class Swallowed:
    """Hand exceptions that nobody can catch to the last fit that joined."""

    def __init__(self) -> None:
        self._fits: list[Heard] = []
        self._before: Callable[[Any], object] = sys.__unraisablehook__

    def join(self, heard: Heard) -> None:
        """Call `heard` with each such exception. The first fit replaces the hook of the process."""
        if not self._fits and sys.unraisablehook != self._see:
            self._before, sys.unraisablehook = sys.unraisablehook, self._see
        self._fits.append(heard)

    def leave(self, heard: Heard) -> None:
        """Hear no more. The last fit restores the hook, unless somebody has replaced ours. Idempotent."""
        if heard in self._fits:
            self._fits.remove(heard)
        if not self._fits and sys.unraisablehook == self._see:
            sys.unraisablehook = self._before

    def _see(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        if self._fits and error is not None and _in_callback_of_ours(error.__traceback__):
            foreign = error if isinstance(error, KeyboardInterrupt) else of_handler(error)
            if foreign is not None:
                self._fits[-1](foreign)
                return
        self._before(unraisable)


def _in_callback_of_ours(traceback: TracebackType | None) -> bool:
    file = "" if traceback is None else traceback.tb_frame.f_code.co_filename
    return file.startswith(_OURS) or file.endswith(_STANDARD)


SWALLOWED = Swallowed()
