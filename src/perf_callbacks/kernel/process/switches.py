"""Shorten the interpreter's switch interval while a side thread waits to sample another thread.

By default, a thread that runs Python keeps the GIL for up to 5 ms after another thread asks for it. But an operation of
torch releases the GIL at once. With the default interval, a sample of Python code shorter than 5 ms would show the next
operation of torch instead.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_SECONDS = 0.0001
"""Shortened switch interval. A sample is late by at most this many seconds."""


class Switches:
    """Shortens the switch interval for a moment, and then restores the program's interval.

    Only one thread may use a `Switches`.
    """

    def __init__(self) -> None:
        self._usual: float | None = None  # while the interval is short
        self._short = 0.0

    @contextmanager
    def soon(self) -> Iterator[None]:
        """Shorten the switch interval in a `with` block, so that the side thread gets the GIL soon after a wait."""
        self._usual = sys.getswitchinterval()
        try:
            sys.setswitchinterval(min(SHORT_SECONDS, self._usual))
            self._short = sys.getswitchinterval()
            yield
        finally:
            self.restore()

    def restore(self) -> None:
        """Restore the interval, unless other code has changed it. Idempotent.

        A forked child calls `restore` too, because the side thread doesn't exist in the child.
        """
        usual, self._usual = self._usual, None
        if usual is not None and sys.getswitchinterval() == self._short:
            sys.setswitchinterval(usual)


SWITCHES = Switches()
"""The one `Switches` of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SWITCHES.restore)
