"""The clocks of this process, bound once.

A test may replace `time.perf_counter` by a mock that counts calls and returns values for the tested code alone. Such a
mock doesn't reach the names bound here, so only this module imports `time`.
"""

import time
from time import monotonic, perf_counter, process_time, sleep, time as unix_time

__all__ = ["monotonic", "perf_counter", "process_time", "seconds_since_boot", "sleep", "unix_time"]


def seconds_since_boot() -> float:
    """Return the seconds since the machine booted, including suspended time. Linux only, else `AttributeError`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
