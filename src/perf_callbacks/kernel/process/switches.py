"""Owner of the interpreter's switch interval, which is shortened while a side thread waits to sample another thread.

By default, a thread that runs Python keeps the interpreter for up to 5 ms after another thread asks for it. In an
operation of torch, the thread gives the interpreter away at once. So samples would show Python code shorter than 5 ms
too rarely, and the operation after it too often.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_SECONDS = 0.0001
"""Shortened switch interval. It also is the most by which a sample comes late."""


class Switches:
    """Shortens the switch interval for moments, and restores the interval of the program. For a single side thread."""

    def __init__(self) -> None:
        self._usual: float | None = None  # while the interval is short
        self._short = 0.0

    @contextmanager
    def soon(self) -> Iterator[None]:
        """Get the interpreter soon after a wait in this block."""
        self._usual = sys.getswitchinterval()
        try:
            sys.setswitchinterval(min(SHORT_SECONDS, self._usual))
            self._short = sys.getswitchinterval()
            yield
        finally:
            self.restore()

    def restore(self) -> None:
        """Restore the interval, unless other code has changed it. Idempotent.

        A forked child calls this too, because its side thread no longer exists.
        """
        usual, self._usual = self._usual, None
        if usual is not None and sys.getswitchinterval() == self._short:
            sys.setswitchinterval(usual)


SWITCHES = Switches()
"""The switch interval of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SWITCHES.restore)
