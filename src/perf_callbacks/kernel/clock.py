"""Functions of the module `time`, imported once: a user's test may mock `time.perf_counter`, with values for itself."""

import time
from collections.abc import Callable
from functools import partial
from time import monotonic, perf_counter, process_time, sleep, time as unix_time

__all__ = ["cpu_seconds_of", "monotonic", "perf_counter", "process_time", "seconds_since_boot", "sleep", "unix_time"]

CLOSE_SECONDS = 2.0  # longest wait of a fit's end, or the interpreter's, for another thread; usually milliseconds

POLL_SECONDS = 0.02  # between two looks at a process that should end soon

PATIENCE_SECONDS = 5.0
PATIENCE_STEPS = 20  # after a pause of as many steps, and of `PATIENCE_SECONDS`, a fit has probably ended or hangs


def cpu_seconds_of(thread: int) -> Callable[[], float] | None:
    """Return a reader of a running thread's CPU time, if the system has it. More exact than /proc; it keeps the GIL."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return None
    return partial(time.clock_gettime, time.pthread_getcpuclockid(thread))


def seconds_since_boot() -> float:
    """With suspend. Outside of Linux, raise `AttributeError`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
