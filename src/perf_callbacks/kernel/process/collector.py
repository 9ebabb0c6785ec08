"""Owner of the process's garbage collector: changes it for several fits at once, and restores it afterwards.

There is one collector per process, and fits may overlap, nest, alternate and run in threads. Each fit has a `Lease`.
Automatic collection is off while any lease wants it off. Objects stay frozen while any lease is held. Fits may end in
any order: the collector is restored when no fit holds a lease any more. Fits that alternate share one schedule: after a
collection by one fit, the next fit skips its own collection.

Automatic collection is turned off by setting the first threshold to 0, not by `gc.disable()`. The threshold doesn't
interfere with code that calls `gc.disable()` during a fit, as `timeit` does.
"""

import gc
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from weakref import ref

from perf_callbacks.kernel.process.owner import Owner
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.fit_records import SCHEDULED

if TYPE_CHECKING:
    from perf_callbacks.kernel.process.gc_observer import GcObserver

OWN_FROZEN = 1000
"""Largest number of objects that Python freezes by itself. If more than `OWN_FROZEN` objects are frozen, the program
froze objects on purpose."""

FULL = 2
"""The oldest generation. Collecting this generation collects all generations."""

LEAST_PATIENCE = 5.0
"""A fit counts as abandoned only if no step has ended for at least `LEAST_PATIENCE` seconds."""

PATIENCE_STEPS = 20
"""A fit counts as abandoned only if no step has ended for `PATIENCE_STEPS` times the fit's longest step."""

ASIDE_PATIENCE = 6
"""Factor that multiplies `LEAST_PATIENCE` and `PATIENCE_STEPS` during an evaluation or a checkpoint."""

_FREEZING = object()
"""Value of `Collector._frozen` during a freeze. If an interrupt strikes during the freeze, this value stays."""


Progress = Callable[[], tuple[int, float] | None]
"""Function that returns a fit's number of steps and the seconds of its longest step. The function returns None if the
fit no longer exists."""


def generational() -> bool:
    """Return True if young objects can be collected separately.

    Return False for free-threaded and incremental collectors. Bugfix releases of Python added and removed the
    incremental collector, so this function checks the thresholds, not the version.
    """
    return gc.get_threshold()[2] != 0 and not sysconfig.get_config_var("Py_GIL_DISABLED")


class Lease:
    """Claim of a fit on the collector. A new lease makes no claim yet."""

    def __init__(self, owner: "Collector", progress: Progress | None = None) -> None:
        self._owner = owner
        self._progress = progress
        self._seen, self._fulls_seen = owner.collections, owner.fulls
        self._steps, self._since = -1, 0.0
        self.ended = False
        """True: the fit is over."""
        self.aside = False
        """True: an evaluation or a checkpoint is under way."""
        self.abandoned = False
        """True: no step ended for so long that the collector was released. The next step may claim the collector again.
        """

    @property
    def off(self) -> bool:
        """True: this fit wants automatic collection off."""
        return self in self._owner.off

    @property
    def overruled(self) -> bool:
        """True: other code has changed the thresholds since this fit turned automatic collection off."""
        return self.off and self._owner.overruled

    def turn_off(self) -> bool:
        """Stop automatic collection. Return False if the program itself has turned collection off."""
        return self._owner.turn_off(self)

    def turn_on(self) -> None:
        """Resume automatic collection, unless another fit wants automatic collection off."""
        self._owner.off.discard(self)
        self._owner.reconcile()

    def freeze(self) -> None:
        """Freeze all live objects, unless other code froze objects before."""
        self._owner.freeze(self)

    def collect(self, generation: int, why: str = SCHEDULED) -> None:
        """Run a scheduled collection, unless another fit has run one since this fit's last collection."""
        owner = self._owner
        behind = owner.fulls > self._fulls_seen if generation >= FULL else owner.collections > self._seen
        if not behind:
            owner.collections += 1
            owner.fulls += generation >= FULL
            self.collect_now(generation, why)
        self._catch_up(generation)

    def collect_now(self, generation: int, why: str = SCHEDULED) -> int:
        """Collect garbage, even if another fit has just collected. Return the number of garbage objects found.

        If a signal arrives during a collection, Python runs the signal handler in the next Python function. In a
        callback of `gc.callbacks`, Python would swallow the handler's exception. So that no exception is lost,
        `collect_now` removes our observers' callbacks during the collection. `collect_now` itself lets the observers
        time the collection.
        """
        observers = [*self._owner.observers]
        with self._owner.collecting(why), ExitStack() as timed:
            ended = [timed.enter_context(observer.timing(generation)) for observer in observers]
            found = gc.collect(generation)
            for end in ended:
                end(found)
            return found

    def _catch_up(self, generation: int) -> None:
        self._seen = self._owner.collections
        if generation >= FULL:
            self._fulls_seen = self._owner.fulls

    def begin(self) -> None:
        self._catch_up(FULL)
        self._steps, self.abandoned, self.ended = -1, False, False

    def let_go(self) -> None:
        """Release the claim. Idempotent. If the lock isn't free soon, the watchdog releases the claim later."""
        self.ended = True
        self._owner.let_go(self)

    def idle(self, now: float) -> bool:
        """Return True if the fit has ended, or if no step of the fit has ended for a long time.

        The watchdog calls `idle` about once a second.
        """
        progress = self._progress() if self._progress is not None else (0, float("inf"))
        if progress is None or self.ended:
            return True
        steps, longest = progress
        if steps != self._steps:
            self._steps, self._since, self.abandoned = steps, now, False
        patience = max(LEAST_PATIENCE, PATIENCE_STEPS * longest) * (ASIDE_PATIENCE if self.aside else 1)
        return now - self._since >= patience


class Collector(Owner[Lease]):
    """Owner of the garbage collector. A claim keeps its lease alive until `let_go`, or until `Lease.idle` is True."""

    def __init__(self) -> None:
        super().__init__()
        self._clear()

    def _clear(self) -> None:
        self._claims.clear()
        self.off: set[Lease] = set()
        self._found: tuple[int, int, int] | None = None  # thresholds, while automatic collection is off
        self._frozen: object | None = None  # a list made after our freeze; a later freeze would freeze the list too
        self.collections = self.fulls = 0
        """Number of scheduled collections of all fits so far. `fulls` counts only full collections."""
        self.reason: str | None = None
        """Reason of the collection that a fit is making. None: no fit is collecting."""
        self.observers: list[GcObserver] = []
        """Observers that have a callback in `gc.callbacks`."""

    @property
    def held(self) -> set[Lease]:
        return {*self._claims.values()}

    @property
    def automatic(self) -> bool:
        """True: automatic collection is on, or would be on if no fit had turned it off."""
        return gc.isenabled() and (self._found is not None or gc.get_threshold()[0] != 0)

    @property
    def thresholds(self) -> tuple[int, int, int]:
        """Thresholds of the collector, without the changes by fits."""
        return gc.get_threshold() if self._found is None or self.overruled else self._found

    @property
    def frozen(self) -> int:
        """Number of objects that other code froze. Counting half a million takes tens of milliseconds."""
        return 0 if self._frozen is not None else gc.get_freeze_count()

    @property
    def overruled(self) -> bool:
        """True: other code has changed the thresholds while fits want automatic collection off."""
        return self._found is not None and gc.get_threshold() != (0, *self._found[1:])

    def turn_off(self, lease: Lease) -> bool:
        """Stop automatic collection for a fit. Return False if the program itself has turned collection off."""
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

    def freeze(self, lease: Lease) -> None:
        self._hold(lease)
        with self._lock:
            if self._frozen is None and self.frozen < OWN_FROZEN:
                self._frozen = _FREEZING
                gc.freeze()
                self._frozen = []

    @contextmanager
    def collecting(self, why: str) -> Iterator[None]:
        """Set `reason` to `why` in this block, so that observers recognize our collections."""
        before, self.reason = self.reason, why
        try:
            yield
        finally:
            self.reason = before

    def tick(self, now: float) -> bool:
        """Release the claims of abandoned fits, and finish interrupted changes."""
        with self._lock:
            idle = {lease for lease in self.held if lease.idle(now)}
            for lease in idle:
                lease.abandoned = True
                self._claims.pop(ref(lease), None)
            frozen = self._frozen is not None
            if idle and frozen:
                self._unfreeze()  # the garbage of the abandoned fits is among the frozen objects
            self.reconcile()
        if idle:
            with self.collecting(SCHEDULED):
                gc.collect()
            with self._lock:
                if frozen and self.held:
                    self.freeze(next(iter(self.held)))
        return bool(self._claims)

    def _hold(self, lease: Lease) -> None:
        if lease not in self.held:
            lease.begin()
            self._claim(lease, lease)
            WATCHDOG.watch(self)

    def _arrange(self) -> None:
        self.off &= self.held
        if not self.off:
            self._resume()
        if not self._claims and self._frozen is not None:
            self._unfreeze()

    def _resume(self) -> None:
        """Restore the thresholds, unless other code has set new thresholds."""
        if self._found is not None:
            if not self.overruled:
                gc.set_threshold(*self._found)
            self._found = None

    def _unfreeze(self) -> None:
        """Unfreeze the objects that a fit froze.

        If other code froze more objects after the fit did, all objects stay frozen.
        """
        mark = self._frozen
        if mark is _FREEZING or any(one is mark for one in gc.get_objects()):
            gc.unfreeze()
        self._frozen = None

    def _forked(self) -> None:
        """Reset the state in a forked child. Frozen objects stay frozen, because their pages are shared."""
        super()._forked()
        self._resume()
        self._clear()


COLLECTOR = Collector()
"""The one `Collector` of this process."""
