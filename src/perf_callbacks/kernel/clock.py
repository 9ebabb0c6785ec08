"""The clocks of this process, bound once.

A test that replaces `time.perf_counter` by a mock counts the calls, and its values are for the tested code alone.
So only this module imports `time`.
"""

import time
from time import monotonic, perf_counter, process_time, sleep, time as unix_time

__all__ = ["monotonic", "perf_counter", "process_time", "seconds_since_boot", "sleep", "unix_time"]


def seconds_since_boot() -> float:
    """Return the age of the machine, suspended time included. Raises an `AttributeError` where it isn't Linux."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
