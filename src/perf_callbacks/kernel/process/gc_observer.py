"""Times garbage collections with a callback in `gc.callbacks`."""

import gc
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from perf_callbacks.kernel.clock import perf_counter
from perf_callbacks.kernel.engine.marks import Pause
from perf_callbacks.kernel.process.collector import COLLECTOR
from perf_callbacks.kernel.process.stacks import calling_line


class GcObserver:
    """Times garbage collections, at no cost between them.

    One counts as automatic if the youngest generation was over its threshold, also in the program's `gc.collect()`.
    """

    def __init__(self, report: Callable[[Pause], object], clock: Callable[[], float] = perf_counter) -> None:
        self._report = report
        self._clock = clock
        self.calls: dict[str, float] = {}
        """Seconds in `gc.collect()`, by the calling line of the program; "" stands for frameworks."""
        self._line: str | None = None
        self._start: float | None = None
        self._automatic = False
        self._ours: str | None = None
        self._thread = threading.get_ident()
        self._process = os.getpid()

    def install(self) -> None:
        """Idempotent."""
        if self.on_gc not in gc.callbacks:
            gc.callbacks.append(self.on_gc)
        if self not in COLLECTOR.observers:
            COLLECTOR.observers.append(self)

    def remove(self) -> None:
        """Idempotent."""
        if self in COLLECTOR.observers:
            COLLECTOR.observers.remove(self)
        if self.on_gc in gc.callbacks:
            gc.callbacks.remove(self.on_gc)

    @contextmanager
    def timing(self, generation: int) -> Iterator[Callable[[int], None]]:
        """Time a collection that a fit makes. Meanwhile, our callback is not in `gc.callbacks`."""
        place = gc.callbacks.index(self.on_gc) if self.on_gc in gc.callbacks else None
        made, start, reason = gc.get_count()[0], self._clock(), COLLECTOR.reason

        def ended(garbage: int) -> None:
            seconds = self._clock() - start
            here = threading.get_ident() == self._thread
            self._report(Pause(generation, start, seconds, garbage, False, here, reason, made))

        try:
            if place is not None:
                del gc.callbacks[place]
            yield ended
        finally:
            if place is not None and self in COLLECTOR.observers and self.on_gc not in gc.callbacks:
                gc.callbacks.insert(place, self.on_gc)

    def on_gc(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            threshold = gc.get_threshold()[0]
            self._automatic = threshold != 0 and gc.isenabled() and gc.get_count()[0] > threshold
            self._ours = COLLECTOR.reason
            self._line = None if self._automatic or self._ours is not None else calling_line() or ""
            self._start = self._clock()
        elif self._start is not None and os.getpid() == self._process:
            seconds = self._clock() - self._start
            here = threading.get_ident() == self._thread
            if self._line is not None:
                self.calls[self._line] = self.calls.get(self._line, 0.0) + seconds
            collected, automatic = info["collected"], self._automatic
            self._report(Pause(info["generation"], self._start, seconds, collected, automatic, here, self._ours))
            self._start = None
