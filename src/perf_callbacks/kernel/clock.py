"""The clocks of this process, bound once.

A test of the program may replace `time.perf_counter` by a mock that returns prepared values. The names bound here keep
the real clock, so our calls use up none of the prepared values. Only this module and standalone scripts import `time`.
"""

import time
from collections.abc import Callable
from functools import partial
from time import monotonic, perf_counter, process_time, sleep, time as unix_time

__all__ = ["cpu_seconds_of", "monotonic", "perf_counter", "process_time", "seconds_since_boot", "sleep", "unix_time"]


def cpu_seconds_of(thread: int) -> Callable[[], float] | None:
    """Return a clock of the CPU time of a running thread. None: this system has no such clock.

    The clock counts up to the moment of the call, unlike /proc, and the call keeps the interpreter's lock.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return None
    return partial(time.clock_gettime, time.pthread_getcpuclockid(thread))


def seconds_since_boot() -> float:
    """Return the seconds since the machine booted, with suspended time. Raise `AttributeError` except on Linux."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
