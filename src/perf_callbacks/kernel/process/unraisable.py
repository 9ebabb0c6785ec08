"""Saves exceptions that signal handlers raise within our callbacks: Python would only print these exceptions.

If a signal arrives during a garbage collection, its handler runs in the first Python function afterwards: perhaps our
callback in `gc.callbacks` or of a weak reference, or our finalizer, whose exceptions Python swallows. While a fit
lasts, `sys.unraisablehook` passes the handler's exception to the fit, which raises it at the end of the current step.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from perf_callbacks.kernel.foreign_errors import of_handler

Heard = Callable[[BaseException], bool | None]
"""Returns True if the fit will raise the exception later."""

Hook = Callable[[Any], object]

_OURS = str(Path(__file__).parents[2])
_STANDARD = ("weakref.py", "_weakrefset.py")
"""Files of the standard library whose weak-reference callbacks this package uses."""


class Unraisable:
    """Receives exceptions that Python would only print, and passes each to the newest fit."""

    def __init__(self) -> None:
        self._fits: list[Heard] = []
        self._hook: Hook | None = None
        self._before: Hook = sys.__unraisablehook__

    def join(self, heard: Heard) -> None:
        """The first fit replaces `sys.unraisablehook`."""
        if not self._fits and (self._hook is None or sys.unraisablehook is not self._hook):
            self._before = sys.unraisablehook
            self._hook = sys.unraisablehook = self._on_top_of(self._before)
        self._fits.append(heard)

    def leave(self, heard: Heard) -> None:
        """If no fit remains, restore the hook that `join` replaced. Idempotent."""
        if heard in self._fits:
            self._fits.remove(heard)
        hook = self._hook
        if not self._fits and hook is not None and sys.unraisablehook is hook:
            self._hook, sys.unraisablehook = None, self._before

    def _on_top_of(self, before: Hook) -> Hook:
        """Make a hook that calls `before` unless a fit takes the exception."""

        def see(unraisable: Any) -> None:
            if self._hook is not see or not self._taken(unraisable.exc_value):
                before(unraisable)

        return see

    def _taken(self, error: BaseException | None) -> bool:
        if not self._fits or error is None or not _in_callback_of_ours(error.__traceback__):
            return False
        foreign = error if isinstance(error, KeyboardInterrupt) else of_handler(error)
        return foreign is not None and bool(self._fits[-1](foreign))


def _in_callback_of_ours(traceback: TracebackType | None) -> bool:
    file = "" if traceback is None else traceback.tb_frame.f_code.co_filename
    return file.startswith(_OURS) or file.endswith(_STANDARD)


UNRAISABLE = Unraisable()
