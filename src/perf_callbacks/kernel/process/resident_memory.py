"""Memory that a process uses, read by a single system call."""

from collections.abc import Callable, Mapping

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

import sys

UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of `ru_maxrss`: macOS counts bytes, Linux KiB."""


def peak_bytes() -> int | None:
    """Return the peak resident memory of this process in bytes; None on Windows."""
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def reading(allocated: Callable[[], int | None] = lambda: None) -> Callable[[], Mapping[str, int]]:
    """Return a function that reads the bytes in use by kind. `allocated` reads the memory of an accelerator."""

    def read() -> Mapping[str, int]:
        found = {"host": peak_bytes(), "device": allocated()}
        return {kind: amount for kind, amount in found.items() if amount is not None}

    return read
