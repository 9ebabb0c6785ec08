"""Save exceptions that signal handlers raise within our callbacks: Python would only print these exceptions.

Python swallows exceptions in a callback in `gc.callbacks`, in a callback of a weak reference, and in a finalizer. If a
signal arrives during a garbage collection, the signal's handler runs in the first Python function afterwards. So a
handler may run within one of our callbacks. While a fit lasts, `sys.unraisablehook` passes the exception of a signal
handler to the fit. The fit raises the handler's exception at the end of the current step.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from perf_callbacks.kernel.foreign_errors import of_handler

Heard = Callable[[BaseException], bool | None]
"""Function that receives an exception. The function returns True if the fit will raise the exception later."""

Hook = Callable[[Any], object]

_OURS = str(Path(__file__).parents[2])
_STANDARD = ("weakref.py", "_weakrefset.py")
"""Files of the standard library whose weak-reference callbacks this package uses."""


class Swallowed:
    """Receives exceptions that Python would only print, and passes each exception to the newest fit."""

    def __init__(self) -> None:
        self._fits: list[Heard] = []
        self._hook: Hook | None = None
        self._before: Hook = sys.__unraisablehook__

    def join(self, heard: Heard) -> None:
        """Pass swallowed exceptions of handlers to `heard` from now on. The first fit replaces `sys.unraisablehook`."""
        if not self._fits and (self._hook is None or sys.unraisablehook is not self._hook):
            self._before = sys.unraisablehook
            self._hook = sys.unraisablehook = self._on_top_of(self._before)
        self._fits.append(heard)

    def leave(self, heard: Heard) -> None:
        """Stop passing exceptions to `heard`. If no fit remains, restore the hook that `join` replaced. Idempotent."""
        if heard in self._fits:
            self._fits.remove(heard)
        hook = self._hook
        if not self._fits and hook is not None and sys.unraisablehook is hook:
            self._hook, sys.unraisablehook = None, self._before

    def _on_top_of(self, before: Hook) -> Hook:
        """Make a hook that calls `before` unless a fit takes the exception.

        While no fit is joined, the hook always calls `before`.
        """

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


SWALLOWED = Swallowed()
