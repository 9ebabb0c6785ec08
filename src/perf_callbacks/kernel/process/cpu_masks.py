"""Owner of the CPU masks of all threads: narrows them for several fits at once, and restores them at the end.

On Linux each thread has its own mask, which new threads and processes inherit. A change covers every thread whose mask
equals the main thread's, and not a thread that other code pinned. Masks stay narrow while any fit is bound; then all
are restored, also of threads that started meanwhile.
"""

import os
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.kernel.process.cpu_sets import Cpus
from perf_callbacks.kernel.process.owner import Owner

TASKS = Path("/proc/self/task")

PASSES = 3
"""Most passes over all threads: a thread that starts meanwhile may inherit the old mask."""


class Threads:
    """Threads of this process, as `/proc` lists them; none on a system without CPU masks."""

    def all(self) -> list[int]:
        if not hasattr(os, "sched_setaffinity"):
            return []
        threads = [os.getpid()]
        with suppress(OSError):  # no /proc: threads that exist already can't be found
            threads += [int(path.name) for path in TASKS.iterdir() if int(path.name) != threads[0]]
        return threads

    def get(self, thread: int) -> Cpus:
        return frozenset(os.sched_getaffinity(thread))

    def set(self, thread: int, cpus: Cpus) -> None:
        os.sched_setaffinity(thread, cpus)


class Affinity(Owner[Cpus]):
    """The wish of a fit is a set of CPUs."""

    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads = threads
        self._clear()

    def _clear(self) -> None:
        self._claims.clear()
        self._found: Cpus | None = None  # mask of the main thread, while any fit is bound
        self._target: Cpus = frozenset()
        self._ours: set[Cpus] = set()  # the mask that was found, and all masks that we set
        self._others: dict[int, Cpus] = {}  # masks of threads that other code pinned before

    @property
    def found(self) -> Cpus | None:
        """CPUs of the process while no fit is bound. None: the system has no CPU masks."""
        if self._found is not None:
            return self._found
        main = self._threads.all()[:1]
        return self._threads.get(main[0]) if main else None

    @property
    def now(self) -> list[tuple[int, Cpus]]:
        masks = [(thread, self._mask(thread)) for thread in self._threads.all()]
        return [(thread, mask) for thread, mask in masks if mask is not None]

    def bind(self, fit: object, cpus: Cpus) -> None:
        """Limit all threads to these CPUs, or those that all bound fits share; no effect if there are none.

        If the system refuses, raise `OSError` and change nothing.
        """
        with self._lock:
            before = self.found
            if before is None:
                return
            if self._found is None:
                self._others = {thread: mask for thread, mask in self.now if mask != before}
                self._ours = {before}
                self._found = before
            self._claim(fit, cpus)
            try:
                self.reconcile()
            except OSError:
                self.let_go(fit)
                raise

    def let_go(self, fit: object) -> None:
        """Idempotent, and callable from finalizers."""
        with suppress(OSError):  # the CPUs that were found are no longer allowed
            super().let_go(fit)

    def _arrange(self) -> None:
        if self._found is None:
            return
        target = self._found
        for cpus in [*self._claims.values()]:
            target = target & cpus or target
        self._target = target
        self._ours.add(target)
        refused: list[OSError] = []
        for _ in range(PASSES):
            refused.clear()
            if not [thread for thread in self._threads.all() if self._move(thread, refused)]:
                break
        if not self._claims:
            self._found = None
        if refused:
            raise refused[0]

    def _move(self, thread: int, refused: list[OSError]) -> bool:
        """Move a thread to the target unless other code pinned it. Return True if it was moved."""
        mask = self._mask(thread)
        pinned = self._others.get(thread)  # an id may be used again
        if mask == self._target or mask not in self._ours or mask == pinned:
            return False
        try:
            self._threads.set(thread, self._target)
        except OSError as error:  # as a rule, the thread has ended
            let_pass(error)
            if self._mask(thread) is not None and thread == self._threads.all()[0]:
                refused.append(error)
            return False
        return True

    def _mask(self, thread: int) -> Cpus | None:
        with suppress(OSError):
            return self._threads.get(thread)
        return None

    def _forked(self) -> None:
        """A forked child keeps its CPU mask."""
        super()._forked()
        self._clear()


AFFINITY = Affinity(Threads())
