"""Find steps during which the whole process was suspended: by SIGSTOP, a debugger, or a frozen container."""

import os
import sys
import threading
from collections.abc import Callable

from typing_extensions import override

from perf_callbacks.kernel.clock import monotonic, process_time
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.step_reader import LONG_SECONDS
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.process import cpu_time
from perf_callbacks.kernel.process.watchdog import PERIOD_SECONDS, WATCHDOG, Watchdog

RUNNING = 0.1
"""A process that ran, or waited for a CPU or the GIL, for at least this part of the time was not suspended."""


def begin(recorder: Recorder, _context: FitContext) -> "Suspensions | None":
    """Return the observer, or None with several ranks: windows need the same steps of all ranks."""
    return Suspensions(WATCHDOG) if recorder.run.world_size == 1 else None


def needed_seconds() -> float:
    """Return the seconds for which this process ran, its main thread waited for a CPU, or the watchdog for the GIL.

    A thread that waits for the GIL wakes up after each switch interval. While the process is suspended, no thread does.
    """
    main, switches = cpu_time.read(os.getpid()), cpu_time.voluntary_switches(WATCHDOG.thread_id)
    return process_time() + (0.0 if main is None else main.queued) + (switches or 0) * sys.getswitchinterval()


class Suspensions(Observer):
    """Notices that the watchdog wakes up late although the process needed no CPU.

    After a suspension, the watchdog may wake up first, or the step may end first. So both look.
    """

    def __init__(
        self,
        watchdog: Watchdog,
        clock: Callable[[], float] = monotonic,
        needed: Callable[[], float] = needed_seconds,
    ) -> None:
        self._watchdog, self._clock, self._needed = watchdog, clock, needed
        self._lock = threading.RLock()  # a signal handler may end a step within a call
        self._before: float | None = None  # CPU seconds at the last tick
        self._judged = 0.0  # beginning of the last long wait
        self._found: tuple[float, float] | None = None  # end and seconds of a suspension whose step has not ended
        self._ended = False
        watchdog.watch(self)

    def tick(self, now: float) -> bool:  # noqa: ARG002 the watchdog calls with the time
        """Look, about once a second."""
        with self._lock:
            self._look()
            self._before = self._needed()
        return not self._ended

    @override
    def closed(self) -> None:
        self._ended = True

    @override
    def suspended(self, seconds: float) -> bool:
        with self._lock:
            self._look()
            found, self._found = self._found, None
        if found is None or self._clock() - found[0] > seconds or seconds < found[1] - 2 * PERIOD_SECONDS:
            return False
        log.warning("perf_callbacks: the process was suspended for %.0f s. The metrics leave this step out.", found[1])
        return True

    def _look(self) -> None:
        began, ended = self._watchdog.wait
        end = self._clock() if ended is None else ended
        if self._before is None or began == self._judged or end - began < LONG_SECONDS:
            return
        self._judged = began
        if self._needed() - self._before < RUNNING * (end - began):
            self._found = end, end - began
