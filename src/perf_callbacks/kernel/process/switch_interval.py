"""Shortens the interpreter's switch interval while a side thread waits to sample another thread.

By default, a thread that runs Python keeps the GIL for up to 5 ms after another asks for it, but an operation of torch
releases it at once: a sample of Python code shorter than 5 ms would show the next operation of torch instead.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_SECONDS = 0.0001
"""A sample is late by at most this much."""


class SwitchInterval:
    """Shortens the switch interval for a moment, and then restores the program's. For one thread only."""

    def __init__(self) -> None:
        self._usual: float | None = None  # while the interval is short
        self._short = 0.0

    @contextmanager
    def soon(self) -> Iterator[None]:
        """Within the block, the side thread gets the GIL soon after a wait."""
        self._usual = sys.getswitchinterval()
        try:
            sys.setswitchinterval(min(SHORT_SECONDS, self._usual))
            self._short = sys.getswitchinterval()
            yield
        finally:
            self.restore()

    def restore(self) -> None:
        """Restore the interval, unless other code has changed it. Idempotent. Forked children need it too."""
        usual, self._usual = self._usual, None
        if usual is not None and sys.getswitchinterval() == self._short:
            sys.setswitchinterval(usual)


SWITCH_INTERVAL = SwitchInterval()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SWITCH_INTERVAL.restore)
