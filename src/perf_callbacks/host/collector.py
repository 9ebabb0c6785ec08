"""The process's garbage collector, changed on behalf of several fits at once and put back as it was found.

There is one collector per process, and fits may overlap, nest, alternate and run in threads. Each fit has a `Lease`.
Automatic collection is off while any lease wants it off, objects stay frozen while any lease is held, and the last one
to let go restores everything, in whatever order fits end. Fits that go on in turns share one schedule: a collection
that one of them made counts for the others.

Automatic collection is turned off by a first threshold of 0, not by `gc.disable()`. Code that disables collection for a
moment (`timeit` does) or for good then does so independently of us, and nothing has to be guessed at the end.
"""

import gc
import os
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from perf_callbacks.core.records import SCHEDULED
from perf_callbacks.host.watchdog import WATCHDOG

OWN_FROZEN = 1000
"""Objects that an interpreter may have frozen for itself. A program that froze more than these did it on purpose."""

FULL = 2
"""The generation that is collected with all others."""

LEAST_PATIENCE = 5.0
"""Seconds without the end of a step after which a fit may be abandoned…"""

PATIENCE_STEPS = 20
"""…if they are as many of its longest steps so far…"""

ASIDE_PATIENCE = 6
"""…and so many times as long within an evaluation or a checkpoint."""

MOMENT_SECONDS = 0.5
"""How long the end of a fit may wait for the watchdog to be done with the collector."""

_FREEZING = object()
"""Stands for the mark of a freeze that was interrupted."""

Progress = Callable[[], tuple[int, float] | None]
"""Steps that a fit has done, and the seconds of its longest one. None: there is no such fit any more."""


def generational() -> bool:
    """Tell whether young objects can be collected apart: not in free-threaded and incremental interpreters.

    Incremental collectors came and went in bugfix releases. They are told by their thresholds.
    """
    return gc.get_threshold()[2] != 0 and not sysconfig.get_config_var("Py_GIL_DISABLED")


class Lease:
    """One fit's claim on the collector."""

    def __init__(self, owner: "Collector", progress: Progress | None = None) -> None:
        self._owner = owner
        self._progress = progress
        self._seen, self._fulls_seen = owner.collections, owner.fulls
        self._steps, self._since = -1, 0.0
        self.ended = False
        """The fit is over."""
        self.aside = False
        """An evaluation or a checkpoint is under way."""
        self.abandoned = False
        """No step ended for so long that the collector was given back. The next step may take it again."""

    @property
    def off(self) -> bool:
        """This fit wants automatic collection off."""
        return self in self._owner.off

    @property
    def alone(self) -> bool:
        """No other fit has a claim."""
        return not self._owner.held - {self}

    @property
    def overruled(self) -> bool:
        """Somebody else set thresholds, or turned automatic collection off for good, since this fit turned it off."""
        return self.off and self._owner.overruled

    def turn_off(self) -> bool:
        """Stop automatic collection. False: it is off already, and not because of a fit."""
        return self._owner.turn_off(self)

    def turn_on(self) -> None:
        """Resume automatic collection, as far as this fit is concerned."""
        self._owner.turn_on(self)

    def freeze(self) -> None:
        """Take everything alive out of further collections, unless somebody froze before."""
        self._owner.freeze(self)

    def collect(self, generation: int, why: str = SCHEDULED) -> int:
        """Collect by a schedule, unless another fit has collected as much since this one last did."""
        owner, found = self._owner, 0
        if not self._behind(generation):
            owner.collections += 1
            owner.fulls += generation >= FULL
            found = self.collect_now(generation, why)
        self._catch_up(generation)
        return found

    def collect_now(self, generation: int, why: str = SCHEDULED) -> int:
        """Collect, whatever other fits did. How many objects were garbage."""
        with self._owner.collecting(why):
            return gc.collect(generation)

    def _behind(self, generation: int) -> bool:
        owner = self._owner
        return owner.fulls > self._fulls_seen if generation >= FULL else owner.collections > self._seen

    def _catch_up(self, generation: int) -> None:
        self._seen = self._owner.collections
        if generation >= FULL:
            self._fulls_seen = self._owner.fulls

    def begin(self) -> None:
        """Count collections from here on."""
        self._catch_up(FULL)
        self._steps, self.abandoned, self.ended = -1, False, False

    def let_go(self) -> None:
        """Give up the claim. Twice is once."""
        self._owner.let_go(self)

    @property
    def over(self) -> bool:
        """There is no such fit any more."""
        return self._progress is not None and self._progress() is None

    def idle(self, now: float) -> bool:
        """Tell whether this fit's steps have stopped ending. Asked about once a second."""
        progress = self._progress() if self._progress is not None else (0, float("inf"))
        if progress is None or self.ended:
            return True
        steps, longest = progress
        if steps != self._steps:
            self._steps, self._since, self.abandoned = steps, now, False
        patience = max(LEAST_PATIENCE, PATIENCE_STEPS * longest) * (ASIDE_PATIENCE if self.aside else 1)
        return now - self._since >= patience


class Collector:
    """The owner of the garbage collector.

    What is wanted is noted before anything is done, and `_restore` goes by what it finds: where an interrupt comes in
    between, the next call or tick of the watchdog makes it right.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._clear()
        self._heard_of_forks = False

    def _clear(self) -> None:
        self.held: set[Lease] = set()
        self.off: set[Lease] = set()
        self._watched: set[Lease] = set()
        self._found: tuple[int, int, int] | None = None  # thresholds, while automatic collection is off
        self._frozen: object | None = None  # a list made after our freeze, which somebody else's freeze takes along
        self.collections = self.fulls = 0
        """Collections by the schedule of any fit so far, and full ones among them."""
        self.reason: str | None = None
        """Why a fit is collecting at this moment. None: whoever collects, it is no fit."""

    def lease(self, progress: Progress | None = None) -> Lease:
        """Make a claim for a fit, which changes nothing yet."""
        return Lease(self, progress)

    def look_after(self, progress: Progress) -> Lease:
        """Make a claim for nothing but one collection, should the fit's steps stop ending.

        A fit that raised and was forgotten is a cycle with its hooks and wrappers, which nobody may ever collect: the
        process may have nothing more to do. Where a fit holds the collector, that one's own end or idleness sees to it.
        """
        lease = self.lease(progress)
        with self._lock:
            self._watched.add(lease)
        self._ask_for_ticks()
        return lease

    @property
    def automatic(self) -> bool:
        """The process collects by itself, or would if it were not for fits."""
        return gc.isenabled() and (self._found is not None or gc.get_threshold()[0] != 0)

    @property
    def thresholds(self) -> tuple[int, int, int]:
        """The thresholds of the process, or those it would have if it were not for fits."""
        return gc.get_threshold() if self._found is None or self.overruled else self._found

    @property
    def frozen(self) -> int:
        """Objects that somebody else froze. Counting them takes milliseconds where there are many."""
        return 0 if self._frozen is not None else gc.get_freeze_count()

    @property
    def overruled(self) -> bool:
        """Automatic collection is on, or thresholds were set, although fits want it off."""
        return self._found is not None and gc.get_threshold() != (0, *self._found[1:])

    def turn_off(self, lease: Lease) -> bool:
        """Stop automatic collection for a fit."""
        with self._lock:
            if not self.automatic:
                return False
        self._hold(lease)
        with self._lock:
            self.off.add(lease)
            if self._found is None:
                found = gc.get_threshold()
                self._found = found
                gc.set_threshold(0, *found[1:])
            return True

    def turn_on(self, lease: Lease) -> None:
        """Resume automatic collection once no fit wants it off."""
        with self._lock:
            self.off.discard(lease)
            if not self.off:
                self._resume()

    def freeze(self, lease: Lease) -> None:
        """Freeze everything alive for as long as any fit has a claim."""
        self._hold(lease)
        with self._lock:
            if self._frozen is None and self.frozen < OWN_FROZEN:
                self._frozen = _FREEZING
                gc.freeze()
                self._frozen = []

    def let_go(self, lease: Lease) -> None:
        """End a fit's claim; the last one restores what was found.

        A finalizer may call this anywhere, so it doesn't wait for long: the watchdog sees that the fit has ended.
        """
        lease.ended = True
        if self._lock.acquire(timeout=MOMENT_SECONDS):
            try:
                self.off.discard(lease)
                self.held.discard(lease)
                self._restore()
            finally:
                self._lock.release()

    @contextmanager
    def collecting(self, why: str) -> Iterator[None]:
        """Collections in this block are ours."""
        before, self.reason = self.reason, why
        try:
            yield
        finally:
            self.reason = before

    def tick(self, now: float) -> bool:
        """Give back what abandoned fits hold, and finish what was interrupted."""
        with self._lock:
            idle = {lease for lease in self.held if lease.idle(now)}
            for lease in idle:
                lease.abandoned = True
            self.off -= idle
            self.held -= idle
            self._watched = {lease for lease in self._watched if not lease.over}
            quiet = {lease for lease in self._watched if lease.idle(now) and not lease.abandoned}
            frozen = self._frozen is not None
            if idle and frozen:
                self._unfreeze()  # their garbage is in there
            self._restore()
            forgotten = bool(quiet) and not self.held and self.automatic
            if idle or forgotten:
                for lease in quiet:
                    lease.abandoned = True
        if idle or forgotten:
            with self.collecting(SCHEDULED):
                gc.collect()
        if idle:
            with self._lock:
                if frozen and self.held:
                    self.freeze(next(iter(self.held)))
        return bool(self.held or self._watched)

    def _hold(self, lease: Lease) -> None:
        """Note a claim.

        The watchdog has a lock of its own, in which a collection may free a fit: `let_go` would wait for our lock. So
        we don't ask the watchdog while we hold ours.
        """
        if lease in self.held:
            return
        with self._lock:
            lease.begin()
            self.held.add(lease)
        self._ask_for_ticks()

    def _ask_for_ticks(self) -> None:
        if not self._heard_of_forks and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        self._heard_of_forks = True
        with suppress(RuntimeError):  # no thread to be had: then nothing looks after a fit that is abandoned
            WATCHDOG.watch(self)

    def _restore(self) -> None:
        if not self.off:
            self._resume()
        if not self.held and self._frozen is not None:
            self._unfreeze()

    def _resume(self) -> None:
        """Put the thresholds back, unless somebody else has set them."""
        if self._found is not None:
            if not self.overruled:
                gc.set_threshold(*self._found)
            self._found = None

    def _unfreeze(self) -> None:
        """Thaw what we froze. If somebody froze on top of it, everything frozen is theirs now."""
        mark = self._frozen
        if mark is _FREEZING or any(one is mark for one in gc.get_objects()):
            gc.unfreeze()
        self._frozen = None

    def _forked(self) -> None:
        """A child, such as a loader's worker, is part of no fit. Frozen objects stay frozen: their pages are shared."""
        self._lock = threading.RLock()
        self._resume()
        self._clear()


COLLECTOR = Collector()
"""Of this process."""
