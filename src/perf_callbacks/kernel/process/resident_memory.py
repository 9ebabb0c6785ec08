"""Memory that a process uses, at the price of a system call."""

from collections.abc import Callable, Mapping

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

import sys

UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of the system's unit of memory."""


def peak_bytes() -> int | None:
    """Return the largest host memory of this process so far; None if the system doesn't say."""
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def reading(allocated: Callable[[], int | None] = lambda: None) -> Callable[[], Mapping[str, int]]:
    """Return functions for the bytes in use, by kind. `allocated` gives those of an accelerator."""

    def read() -> Mapping[str, int]:
        found = {"host": peak_bytes(), "device": allocated()}
        return {kind: amount for kind, amount in found.items() if amount is not None}

    return read
