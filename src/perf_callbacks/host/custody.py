"""Automatic collection and frozen objects, changed on behalf of one fit at a time, and put back as they were found."""

import gc
import os
import sysconfig
import threading
from collections.abc import Sequence

OWN_FROZEN = 1000
"""Objects that an interpreter may have frozen for itself. Who froze more than these did it on purpose."""


def generational() -> bool:
    """Whether a young collection is one: in a free-threaded or an incremental interpreter it is not.

    Incremental collectors came and went in bugfix releases. They are told by what they answer.
    """
    return gc.get_threshold()[2] != 0 and not sysconfig.get_config_var("Py_GIL_DISABLED")


class Custody:
    """Turns automatic collection off and freezes long-lived objects, for the fit that has it.

    There is one collector per process. A fit that begins within another one, or after one that nobody closed, takes
    over from it, and everything is as it was found in between; the other may take it back once it goes on. Neither
    thresholds nor callbacks are changed.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: object | None = None
        self._thread = 0
        self._off = False
        self._frozen = 0
        self._heard_of_forks = False
        self.unnoticed = False
        """Whether what is collected at the moment is nothing to speak of."""

    @property
    def automatic(self) -> bool:
        """Whether the process collects by itself, or would if it were not for us."""
        return gc.isenabled() or self._off

    @property
    def frozen(self) -> int:
        """Objects that somebody else froze."""
        return 0 if self._frozen else gc.get_freeze_count()

    def take(self, holder: object) -> bool:
        """From now on it is this one's to change. False: a fit of another thread has it."""
        with self._lock:
            if self._holder is not None and self._holder is not holder:
                if self._thread in {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}:
                    return False
                self._restore()
            self._hear_of_forks()
            self._holder, self._thread = holder, threading.get_ident()
            return True

    def held_by(self, holder: object) -> bool:
        """Whether it is still this one's."""
        return self._holder is holder

    def overruled(self, holder: object) -> bool:
        """Whether somebody turned automatic collection on that this one had turned off."""
        return self._holder is holder and self._off and gc.isenabled()

    def turn_off(self, holder: object) -> bool:
        """No automatic collection from now on. False: it is off, and not because of us."""
        with self._lock:
            if self._holder is not holder or not self.automatic:
                return False
            self._off = True
            gc.disable()
            return True

    def turn_on(self, holder: object) -> None:
        """Automatic collection again, if it was turned off before."""
        with self._lock:
            if self._holder is holder and self._off:
                gc.enable()
                self._off = False

    def pass_over(self, holder: object, counts: Sequence[int]) -> None:
        """Automatic collection again, with as many young collections to go until it looks at more as `counts` says.

        That is what `gc.get_count()` was when it was turned off.
        """
        with self._lock:
            if self._holder is not holder:
                return
            try:
                self.unnoticed = True
                for _ in range(min(counts[1], gc.get_threshold()[1] + 1) if generational() else 0):
                    gc.collect(0)  # of nothing: it is counted, that is all
            finally:
                self.unnoticed = False
                self.turn_on(holder)

    def freeze(self, holder: object) -> None:
        """What is alive now is looked at by no further collection, unless somebody else froze already."""
        with self._lock:
            if self._holder is holder and self.frozen < OWN_FROZEN:
                gc.freeze()
                self._frozen = gc.get_freeze_count()

    def let_go(self, holder: object) -> None:
        """Everything is as it was found. Twice is once."""
        with self._lock:
            if self._holder is holder:
                self._restore()

    def _restore(self) -> None:
        if self._frozen:
            if gc.get_freeze_count() <= self._frozen:  # else somebody froze on top of it: it is theirs now
                gc.unfreeze()
            self._frozen = 0
        if self._off:
            gc.enable()
            self._off = False
        self._holder = None

    def _hear_of_forks(self) -> None:
        if not self._heard_of_forks and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        self._heard_of_forks = True

    def _forked(self) -> None:
        """A child, such as a loader's worker, is part of no fit. What is frozen stays so: its pages are shared."""
        self._lock = threading.RLock()
        if self._off:
            gc.enable()
        self._off, self._frozen, self._holder = False, 0, None


CUSTODY = Custody()
"""Of this process."""
