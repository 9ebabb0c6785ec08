"""The clocks of this process, bound once.

A test of the program may replace `time.perf_counter` by a mock that returns prepared values. The names bound here keep
the real clock, so our calls use up none of the prepared values. Only this module imports `time`.
"""

import time
from time import monotonic, perf_counter, process_time, sleep, time as unix_time

__all__ = ["monotonic", "perf_counter", "process_time", "seconds_since_boot", "sleep", "unix_time"]


def seconds_since_boot() -> float:
    """Return the seconds since the machine booted, with suspended time. Raise `AttributeError` except on Linux."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
