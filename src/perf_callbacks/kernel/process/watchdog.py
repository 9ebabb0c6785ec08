"""A side thread that looks after fits whose training thread is busy or gone.

Hooks run at the end of a step, and sometimes no step ends for long: a loop has swallowed an exception, a fit is never
closed, or a step takes minutes. Once a second, the watched objects release process-wide state, or write records.
"""

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from perf_callbacks.kernel.clock import CLOSE_SECONDS, monotonic
from perf_callbacks.kernel.foreign_errors import let_pass, suppress

PERIOD_SECONDS = 1.0

log = logging.getLogger("perf_callbacks")


class Watched(Protocol):
    """Object whose `tick` the watchdog calls once a second. It holds a weak reference only."""

    def tick(self, now: float) -> bool: ...


class Watchdog:
    """Calls `tick` of all watched objects, on a daemon thread that lives only while objects are watched."""

    def __init__(self, clock: Callable[[], float] = monotonic, *, threaded: bool = True) -> None:
        self._clock = clock
        self._threaded = threaded
        self.wait: tuple[float, float | None] = clock(), clock()
        """Begin and end of the thread's last wait for a tick. The end is None while it waits."""
        self._reset()
        if threaded:
            atexit.register(self.stop)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """A forked child belongs to no fit, and has no watchdog thread."""
        self._lock = threading.RLock()  # a garbage collection under the lock may close a fit, which takes the lock
        self._watched: list[weakref.ref[Watched]] = []
        self._thread: threading.Thread | None = None
        self._wake, self._ticked = threading.Event(), threading.Event()
        self._ended = False

    @property
    def thread_id(self) -> int | None:
        """Native id of the thread; None: there is no thread."""
        thread = self._thread
        return None if thread is None else thread.native_id

    def watch(self, watched: Watched) -> None:
        """Call `watched.tick` once a second until it returns False or the object is freed, if a thread can start."""
        with self._lock, suppress(RuntimeError):
            if not any(reference() is watched for reference in self._watched):
                self._watched.append(weakref.ref(watched))
            if self._threaded and self._thread is None and not self._ended:
                thread = threading.Thread(target=self._run, name="perf_callbacks watchdog", daemon=True)
                self._thread = thread
                try:
                    thread.start()
                except BaseException:  # no thread available, or an interrupt: the next call tries again
                    self._thread = None
                    raise

    def tick(self) -> bool:
        now = self._clock()
        for reference in [*self._watched]:
            watched = reference()
            with self._lock:  # an object that registers from now on, during its last tick, is kept
                self._watched = [other for other in self._watched if other is not reference]
            try:
                goes_on = watched is not None and watched.tick(now)
            except Exception as error:
                let_pass(error)
                log.debug("perf_callbacks: a tick failed.", exc_info=error)
                goes_on = False
            del watched  # this thread must not keep the object alive until the next tick
            if goes_on:
                with self._lock:
                    if not any(other is reference for other in self._watched):
                        self._watched.append(reference)
        return bool(self._watched)

    def hurry(self) -> None:
        """Tick now because a fit has ended, and wait for the end of the thread if nothing is left to watch."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        for _ in range(2):  # a tick that was already under way may have missed the end of the fit
            self._ticked.clear()
            self._wake.set()
            if not self._ticked.wait(CLOSE_SECONDS):
                return
            if self._thread is not thread:
                thread.join(CLOSE_SECONDS)
                return

    def stop(self) -> None:
        """End the thread, which must not return to an interpreter that is shutting down."""
        thread, self._ended = self._thread, True
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._ended:
            self.wait = self._clock(), None
            self._wake.wait(PERIOD_SECONDS)
            self.wait = self.wait[0], self._clock()
            self._wake.clear()
            if not self._ended and not self.tick():
                with self._lock:
                    if not self._watched:
                        self._thread = None
            self._ticked.set()
            if self._thread is not threading.current_thread():
                return


WATCHDOG = Watchdog()
