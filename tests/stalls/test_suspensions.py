"""A step during which the whole process was suspended is no step of the training."""

import ctypes
import sys

import pytest
from fakes import Fit

from perf_callbacks.kernel.engine.observer import Observer, Observers
from perf_callbacks.kernel.process.watchdog import WATCHDOG, Watchdog
from perf_callbacks.stalls.suspensions import RUNNING, Suspensions, needed_seconds


class Process:
    """A process with a watchdog, on a clock that the test moves."""

    def __init__(self):
        self.now, self.needed = 100.0, 0.0
        self.watchdog = Watchdog(lambda: self.now, threaded=False)
        self.suspensions = Suspensions(self.watchdog, lambda: self.now, lambda: self.needed)
        self.tick()

    def tick(self):
        """End the wait that is under way, as the watchdog's thread does."""
        self.watchdog.wait = self.watchdog.wait[0], self.now
        self.watchdog.tick()
        self.watchdog.wait = self.now, None


@pytest.mark.parametrize("first", ["tick", "step"])
def test_a_suspension_is_noticed_by_tick_or_step(first):
    process = Process()
    process.now += 20.5
    if first == "tick":
        process.tick()
    assert process.suspensions.suspended(20.1)
    process.tick()
    assert not process.suspensions.suspended(20.1)


@pytest.mark.parametrize(("needed", "suspended"), [(1.9, True), (2.1, False), (20.0, False)])
def test_a_process_that_runs_or_lacks_a_cpu_is_not_suspended(needed, suspended):
    process = Process()
    process.now, process.needed = process.now + 20.0, needed
    assert process.suspensions.suspended(20.0) is suspended


def test_a_long_step_with_ticks_is_not_suspended():
    process = Process()
    for _ in range(20):
        process.now += 1.0
        process.tick()
    assert not process.suspensions.suspended(20.0)


def test_a_suspension_before_the_step_is_not_in_it():
    process = Process()
    process.now += 20.0
    process.tick()
    for _ in range(8):
        process.now += 1.0
        process.tick()
    assert not process.suspensions.suspended(7.5)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the switches of a thread")
def test_a_call_into_c_that_holds_the_interpreter_lock_is_no_suspension():
    suspensions = Suspensions(WATCHDOG)
    before = needed_seconds()
    ctypes.PyDLL(None).usleep(2_000_000)
    assert needed_seconds() - before > RUNNING * 2.0
    suspensions.closed()


class Suspended(Observer):
    """Knows of a suspension in any long step."""

    def suspended(self, seconds):
        return True


def test_a_suspended_step_is_excluded_and_its_time_is_named():
    observers = Observers()
    observers.add(Suspended())
    fit = Fit(observers=observers)
    for seconds in (1.0, 1.0, 21.0, 1.0):
        fit.step(forward=seconds)
    summary = fit.engine.stop(fit.now)
    assert (summary.included_steps, summary.included_seconds) == (2, 2.0)
    assert (summary.wall_seconds["steps"], summary.wall_seconds["suspended"]) == (3.0, 20.0)
