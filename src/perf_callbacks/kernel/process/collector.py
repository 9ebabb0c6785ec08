"""Owner of the process's garbage collector: changes it for several fits at once, and restores it afterwards.

Fits may overlap, nest, alternate, run in threads and end in any order; each has a `Lease`. Automatic collection is off
while any lease wants it off, and objects stay frozen while any lease is held. Fits that alternate share one schedule:
after a collection by one fit, the next fit skips its own.

The first threshold is set to 0 instead of `gc.disable()`, which programs may call during a fit, as `timeit` does.
"""

import gc
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from weakref import ref

from perf_callbacks.kernel.clock import PATIENCE_SECONDS, PATIENCE_STEPS
from perf_callbacks.kernel.process.owner import Owner
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.fit_records import SCHEDULED

if TYPE_CHECKING:
    from perf_callbacks.kernel.process.gc_observer import GcObserver

OWN_FROZEN = 1000
"""Most objects that Python freezes by itself. If more are frozen, the program froze them on purpose."""

FULL = 2

ASIDE_PATIENCE = 6  # times as long may a fit in an evaluation or a checkpoint be without steps

_FREEZING = object()
"""`Collector.frozen_mark` during a freeze, and after an interrupt of the freeze."""


Progress = Callable[[], tuple[int, float] | None]
"""Returns a fit's steps and the seconds of the longest; None if the fit no longer exists."""


def generational() -> bool:
    """Check thresholds, not versions: bugfix releases added and removed the incremental collector."""
    return gc.get_threshold()[2] != 0 and not sysconfig.get_config_var("Py_GIL_DISABLED")


class Lease:
    """Claim of a fit on the collector. A new lease makes no claim yet."""

    def __init__(self, owner: "Collector", progress: Progress | None = None) -> None:
        self._owner = owner
        self._progress = progress
        self._seen, self._fulls_seen = owner.collections, owner.fulls
        self._steps, self._since = -1, 0.0
        self.ended = False
        self.aside = False
        self.abandoned = False
        """True: no step ended for so long that the collector was released. The next step may claim it again."""

    @property
    def off(self) -> bool:
        return self in self._owner.off

    @property
    def overruled(self) -> bool:
        """True: other code has changed the thresholds since this fit turned automatic collection off."""
        return self.off and self._owner.overruled

    def turn_off(self) -> bool:
        """Stop automatic collection. False: the program itself has turned it off."""
        return self._owner.turn_off(self)

    def turn_on(self) -> None:
        """Resume automatic collection, unless another fit wants it off."""
        self._owner.off.discard(self)
        self._owner.reconcile()

    def freeze(self) -> None:
        """Freeze all live objects, unless other code froze objects before."""
        self._owner.freeze(self)

    def collect(self, generation: int, why: str = SCHEDULED) -> None:
        """Collect, unless another fit has done so since this fit's last collection."""
        owner = self._owner
        behind = owner.fulls > self._fulls_seen if generation >= FULL else owner.collections > self._seen
        if not behind:
            owner.collections += 1
            owner.fulls += generation >= FULL
            self.collect_now(generation, why)
        self._catch_up(generation)

    def collect_now(self, generation: int, why: str = SCHEDULED) -> int:
        """Collect, even if another fit has just done so. Return the number of garbage objects found.

        If a signal arrives during a collection, Python runs its handler in the next Python function, and swallows the
        handler's exception in a callback of `gc.callbacks`. So our observers' callbacks are removed meanwhile, and the
        observers time the collection by themselves.
        """
        observers = [*self._owner.observers]
        with self._owner.collecting(why), ExitStack() as timed:
            ended = [timed.enter_context(observer.timing(generation)) for observer in observers]
            garbage = gc.collect(generation)
            for end in ended:
                end(garbage)
            return garbage

    def _catch_up(self, generation: int) -> None:
        self._seen = self._owner.collections
        if generation >= FULL:
            self._fulls_seen = self._owner.fulls

    def begin(self) -> None:
        self._catch_up(FULL)
        self._steps, self.abandoned, self.ended = -1, False, False

    def let_go(self) -> None:
        """Idempotent. If the lock isn't free soon, the watchdog releases the claim later."""
        self.ended = True
        self._owner.let_go(self)

    def idle(self, now: float) -> bool:
        """Return True if the fit, or its steps, ended long ago. The watchdog calls this about once a second."""
        progress = self._progress() if self._progress is not None else (0, float("inf"))
        if progress is None or self.ended:
            return True
        steps, longest = progress
        if steps != self._steps:
            self._steps, self._since, self.abandoned = steps, now, False
        patience = max(PATIENCE_SECONDS, PATIENCE_STEPS * longest) * (ASIDE_PATIENCE if self.aside else 1)
        return now - self._since >= patience


class Collector(Owner[Lease]):
    """A claim keeps its lease alive until `let_go`, or until `Lease.idle` is True."""

    def __init__(self) -> None:
        super().__init__()
        self._clear()

    def _clear(self) -> None:
        self._claims.clear()
        self.off: set[Lease] = set()
        self._found: tuple[int, int, int] | None = None  # thresholds, while automatic collection is off
        self.frozen_mark: object | None = None  # a list made after our freeze; a later freeze would freeze the list too
        self.collections = self.fulls = 0
        """Scheduled collections of all fits so far; `fulls` of them are full."""
        self.reason: str | None = None
        self.observers: list[GcObserver] = []
        """Those that have a callback in `gc.callbacks`."""

    @property
    def held(self) -> set[Lease]:
        return {*self._claims.values()}

    @property
    def automatic(self) -> bool:
        """True: automatic collection is on, or would be on if no fit had turned it off."""
        return gc.isenabled() and (self._found is not None or gc.get_threshold()[0] != 0)

    @property
    def thresholds(self) -> tuple[int, int, int]:
        """Without the changes by fits."""
        return gc.get_threshold() if self._found is None or self.overruled else self._found

    @property
    def frozen(self) -> int:
        """Objects that other code froze. Counting half a million takes tens of milliseconds."""
        return 0 if self.frozen_mark is not None else gc.get_freeze_count()

    @property
    def overruled(self) -> bool:
        """True: other code has changed the thresholds while fits want automatic collection off."""
        return self._found is not None and gc.get_threshold() != (0, *self._found[1:])

    def turn_off(self, lease: Lease) -> bool:
        """Return False if the program itself has turned collection off."""
        with self._lock:
            if not self.automatic:
                return False
        self._hold(lease)
        with self._lock:
            self.off.add(lease)
            if self._found is None:
                thresholds = gc.get_threshold()
                self._found = thresholds
                gc.set_threshold(0, *thresholds[1:])
            return True

    def freeze(self, lease: Lease) -> None:
        self._hold(lease)
        with self._lock:
            if self.frozen_mark is None and self.frozen < OWN_FROZEN:
                self.frozen_mark = _FREEZING
                gc.freeze()
                self.frozen_mark = []

    @contextmanager
    def collecting(self, why: str) -> Iterator[None]:
        """Set `reason` in this block, so that observers recognize our collections."""
        before, self.reason = self.reason, why
        try:
            yield
        finally:
            self.reason = before

    def tick(self, now: float) -> bool:
        with self._lock:
            idle = {lease for lease in self.held if lease.idle(now)}
            for lease in idle:
                lease.abandoned = True
                self._claims.pop(ref(lease), None)
            frozen = self.frozen_mark is not None
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
        if not self._claims and self.frozen_mark is not None:
            self._unfreeze()

    def _resume(self) -> None:
        """Restore the thresholds, unless other code has set new ones."""
        if self._found is not None:
            if not self.overruled:
                gc.set_threshold(*self._found)
            self._found = None

    def _unfreeze(self) -> None:
        """If other code froze more objects after the fit did, all objects stay frozen."""
        mark = self.frozen_mark
        if mark is _FREEZING or any(item is mark for item in gc.get_objects()):
            gc.unfreeze()
        self.frozen_mark = None

    def _forked(self) -> None:
        """Frozen objects stay frozen in a forked child, because their pages are shared."""
        super()._forked()
        self._resume()
        self._clear()


COLLECTOR = Collector()
