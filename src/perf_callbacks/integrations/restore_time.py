"""Measurement of the time that a framework takes to read a checkpoint before the fit begins."""

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from perf_callbacks.kernel.clock import perf_counter
from perf_callbacks.kernel.process.patches import Patches

T = TypeVar("T")


class RestoreTime:
    """Adds up the time in calls that read a checkpoint. Nested calls count once."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._seconds: float | None = None
        self._inside = False
        self._freed: weakref.finalize[..., Any] | None = None

    def watch(self, owner: Any, *names: str) -> None:
        """Replaced on the class, so that copies contain no replacement, and none keeps the object alive."""
        self._stop()
        mine = weakref.ref(owner)

        def make(inner: Callable[..., T]) -> Callable[..., T]:
            timed = self.timed(inner)

            @functools.wraps(inner)
            def call(called: Any, *args: Any, **kwargs: Any) -> T:
                return (timed if called is mine() else inner)(called, *args, **kwargs)

            return call

        for name in names:
            if inspect.isfunction(inspect.getattr_static(type(owner), name, None)):
                self._patches.method(type(owner), name, make)
        self._freed = weakref.finalize(owner, self._patches.restore)
        self._freed.atexit = False

    def timed(self, inner: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> T:
            if self._inside:
                return inner(*args, **kwargs)
            self._inside, began = True, perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self._inside, self._seconds = False, (self._seconds or 0.0) + perf_counter() - began

        return call

    def take(self) -> float | None:
        """Return None without a timed call."""
        self._stop()
        seconds, self._seconds = self._seconds, None
        return seconds

    def _stop(self) -> None:
        if self._freed is not None:
            self._freed.detach()
        self._patches.restore()
