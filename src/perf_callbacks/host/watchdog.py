"""A side thread that looks after fits while their training thread is busy elsewhere, or gone.

Hooks tell when a step ends; nothing tells when no step ends any more. An exception that a loop swallows, a fit that
nobody closes, a step that takes minutes: in all of these the training thread makes no call of ours. The watchdog ticks
once a second for whoever asked for it, so that process-wide state is let go and records reach the disk all the same.
"""

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

PERIOD_SECONDS = 1.0
"""Between two ticks."""

EXIT_SECONDS = 1.0
"""How long the end of the interpreter may wait for a tick that is under way."""

HURRY_SECONDS = 0.1
"""How long the end of a fit may wait for a tick, and for the thread to end."""

log = logging.getLogger("perf_callbacks")


class Watched(Protocol):
    """Something that is looked at once a second. It is held weakly, so being watched keeps nothing alive."""

    def tick(self, now: float) -> bool:
        """Look after it, on the watchdog's thread and clock. False: it needs no further ticks."""
        ...


class Watchdog:
    """Ticks for everything that is watched, on a daemon thread that lives only while there is something to watch."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, threaded: bool = True) -> None:
        self._clock = clock
        self._threaded = threaded
        self._reset()
        if threaded:
            atexit.register(self.stop)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Watch nothing. A forked child is part of no fit, and has no thread but its own."""
        self._lock = threading.RLock()  # a collection within may close a fit, which asks for ticks or gives them up
        self._watched: list[weakref.ref[Watched]] = []
        self._thread: threading.Thread | None = None
        self._wake, self._ticked = threading.Event(), threading.Event()
        self._ended = False

    def watch(self, watched: Watched) -> None:
        """Tick for this object until it says that it needs no more, or is freed. Twice is once."""
        with self._lock:
            if not any(one() is watched for one in self._watched):
                self._watched.append(weakref.ref(watched))
            if self._threaded and self._thread is None and not self._ended:
                thread = threading.Thread(target=self._run, name="perf_callbacks watchdog", daemon=True)
                self._thread = thread
                try:
                    thread.start()
                except BaseException:  # no thread to be had, or an interrupt: the next one who asks tries again
                    self._thread = None
                    raise

    def tick(self) -> bool:
        """Tick once for everything that is watched. Whether there is anything left to watch."""
        now = self._clock()
        for reference in [*self._watched]:
            watched = reference()
            with self._lock:  # who asks anew from now on, in the midst of its last tick, is heard
                self._watched = [one for one in self._watched if one is not reference]
            try:
                more = watched is not None and watched.tick(now)
            except Exception as error:
                log.debug("perf_callbacks: a tick failed.", exc_info=error)
                more = False
            del watched  # nothing stays alive because this thread was the last to look at it
            if more:
                with self._lock:
                    if not any(one is reference for one in self._watched):
                        self._watched.append(reference)
        return bool(self._watched)

    def hurry(self) -> None:
        """Tick now, since something has ended, and see the thread end too if that was the last thing watched."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        self._ticked.clear()
        self._wake.set()
        if self._ticked.wait(HURRY_SECONDS) and self._thread is not thread:
            thread.join(HURRY_SECONDS)

    def stop(self) -> None:
        """End the thread: at exit it must not come back into an interpreter that is going away."""
        thread, self._ended = self._thread, True
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(EXIT_SECONDS)

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(PERIOD_SECONDS)
            self._wake.clear()
            if not self._ended and not self.tick():
                with self._lock:
                    if not self._watched:
                        self._thread = None
            self._ticked.set()
            if self._thread is not threading.current_thread():
                return


WATCHDOG = Watchdog()
"""Of this process."""
