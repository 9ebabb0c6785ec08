"""Base class for owners of process-wide state that several fits change at once."""

import os
from threading import RLock
from typing import Any, Generic, TypeVar
from weakref import WeakSet, ref

from perf_callbacks.kernel.foreign_errors import let_pass, suppress

MOMENT_SECONDS = 0.5
"""Longest wait of a finalizer for the lock of an owner."""

Wish = TypeVar("Wish")


class Owner(Generic[Wish]):
    """Changes one piece of process-wide state while any fit claims it, and restores it after the last claim.

    Fits overlap, nest, alternate, run in threads, get interrupted, are forgotten, and end in any order.

    Claims change first. `_arrange` then sets the state that all claims together need, whatever the current state is,
    and so finishes a change that an interrupt stopped halfway. The watchdog calls `tick` once a second if the owner has
    called `WATCHDOG.watch`.

    Claims hold their fits by weak references, whose callbacks drop the claims of freed fits. Python swallows an
    interrupt that strikes in such a callback, and never calls it again, so `reconcile` drops these claims too.

    Only the holder of the lock changes claims. Without the lock, `tick` could find no claims, and end its ticks, before
    the state is restored. Readers need no lock: they make a copy in one call into C, `[*claims]`, `[*claims.values()]`
    or `claims.copy()`. A loop over `items()` makes tuples, which may start a garbage collection, which may free a fit.

    The lock is reentrant, because a garbage collection may run a finalizer on the thread that holds the lock. A
    finalizer runs on any thread that allocates, even while it holds a lock of other code: two threads could wait for
    each other forever. So each finalizer waits for at most `MOMENT_SECONDS`. An owner never calls the watchdog while it
    holds its lock, because the watchdog has a lock too.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._claims: dict[ref[Any], Wish] = {}
        """Oldest first. A wish that refers to its fit keeps the fit alive."""
        _OWNERS.add(self)

    def _arrange(self) -> None:
        """Set the state that the claims need, whatever the current state is. The caller holds the lock."""
        raise NotImplementedError

    def _claim(self, fit: object, wish: Wish) -> None:
        """Replace the wish of a fit. The state changes at the next `reconcile`."""
        with self._lock:
            self._claims[ref(fit, self._freed)] = wish

    def reconcile(self) -> None:
        with self._lock:
            for reference in [*self._claims]:
                if reference() is None:
                    self._claims.pop(reference, None)
            self._arrange()

    def tick(self, now: float) -> bool:  # noqa: ARG002 the watchdog calls with the time
        """Finish an interrupted change. Return False if no claims are left."""
        with self._lock:
            self.reconcile()
            return bool(self._claims)

    def release(self, fit: object) -> None:
        """Idempotent."""
        with self._lock:
            self._claims.pop(ref(fit), None)
            self.reconcile()

    def let_go(self, fit: object) -> None:
        """Idempotent. Safe in finalizers: the call waits at most 0.5 s for the lock."""
        self._drop(ref(fit), MOMENT_SECONDS)

    def _freed(self, reference: Any) -> None:
        with suppress(Exception):  # no caller would see an error here
            self._drop(reference, 0)

    def _drop(self, reference: Any, seconds: float) -> None:
        held = self._lock._is_owned()  # type: ignore[attr-defined] # noqa: SLF001 as `threading.Condition` does
        try:  # before `acquire`, because an interrupt may come right after `acquire`
            if held or self._lock.acquire(timeout=seconds):
                self._claims.pop(reference, None)
                self.reconcile()
        finally:
            if not held:
                try:  # an interrupt may come in any call before `release`
                    self._lock.release()
                except RuntimeError as error:  # the lock wasn't free in time
                    let_pass(error)

    def _forked(self) -> None:
        """The thread that held the lock may not exist in a forked child."""
        self._lock = RLock()


_OWNERS: "WeakSet[Owner[Any]]" = WeakSet()


def _in_child() -> None:
    for owner in [*_OWNERS]:
        owner._forked()  # noqa: SLF001 of this module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
