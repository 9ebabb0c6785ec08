"""Stance of torch's compiler, one for the whole process: eager while a count runs.

torch keeps it in `torch._dynamo.eval_frame._stance`, and each `set_stance` restores the stance that it found (in torch
2.6 to 2.13). Two of them that overlap without nesting therefore leave the first one's stance behind. Here the stance
has one owner.
"""

import os
import re
import sys
import warnings
from threading import RLock
from types import FrameType
from typing import Any
from weakref import WeakSet

GLOBAL_HOOKS = "Using .torch.compile.module.. when there are global hooks on modules"
"""Warning of compiled modules about hooks on all modules, which make no difference to them."""


class EagerStance:
    """Makes compiled code run eagerly while it has a holder, and then as before.

    Holders may end in any order and on any thread, and are held weakly. Each change is noted before it is made, so that
    `reconcile` can finish a change that an interrupt cut short. A stance that other code sets meanwhile stays.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # a garbage collection within may free a holder, which then releases
        self._holders: WeakSet[object] = WeakSet()
        self.ours: Any = None
        """Stance that is in force for the holders; None while there are none."""
        self._before: Any = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def hold(self, holder: object) -> None:
        """Run eagerly from here on. A second call does nothing. Without torch's compiler, nothing is compiled."""
        with self._lock:
            self._holders.add(holder)
            self.reconcile()
            frame = _eval_frame()
            if frame is not None and frame._stance is not self.ours:  # noqa: SLF001 there is no public way to ask
                self._before = frame._stance  # noqa: SLF001 somebody else has set it since
                frame._stance = self.ours  # noqa: SLF001 as in `reconcile`

    def release(self, holder: object) -> None:
        """Stop running eagerly, unless there is another holder."""
        with self._lock:
            self._holders.discard(holder)
            self.reconcile()

    def reconcile(self) -> None:
        """Set the stance, and the filter of warnings, as the remaining holders need."""
        with self._lock:
            frame = _eval_frame()
            if frame is None:
                return
            if len(self._holders):
                if self.ours is None:
                    self._before = frame._stance  # noqa: SLF001 as above
                    self.ours = frame.DynamoStance("force_eager")
                    # `set_stance` sets it before it returns the earlier one, and refuses while a compiled function
                    # runs; setting it is safe there too, because it is read when such a function is entered or left
                    frame._stance = self.ours  # noqa: SLF001
                if not _filters():
                    # `filterwarnings` would make Python forget which warnings it has shown, and show all once more
                    warnings.filters.insert(0, ("ignore", re.compile(GLOBAL_HOOKS), Warning, None, 0))  # type: ignore[attr-defined] # as below
                return
            for ours in _filters():
                warnings.filters.remove(ours)  # type: ignore[attr-defined] # it is a list
            ours, before = self.ours, self._before
            if ours is not None:
                vars(ours).update(vars(before))  # a `with set_stance` that began meanwhile will restore ours
                if frame._stance is ours:  # noqa: SLF001 as above
                    frame._stance = before  # noqa: SLF001 as above
                self.ours = self._before = None

    def _forked(self) -> None:
        """Replace the lock in a forked child, where no thread would release it."""
        self._lock = RLock()


STANCE = EagerStance()
"""The stance of this process."""


def in_compiled_call() -> bool:
    """Tell if a call of compiled code is under way in this thread, though it may run eagerly.

    When such a call ends, torch restores the thread's dispatch keys, and with them whether modes are active. A mode
    that is pushed in it becomes inactive; after a mode is popped in it, every operation fails.
    """
    eval_frame = _eval_frame()
    if eval_frame is None:
        return False
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 the only way to the caller
    while frame is not None:
        if frame.f_code.co_filename == eval_frame.__file__:
            return True
        frame = frame.f_back
    return False


def anything_compiled() -> bool:
    """Tell whether torch's compiler has compiled anything in this process."""
    compiler: Any = sys.modules.get("torch._dynamo.utils")
    return compiler is not None and bool(compiler.counters["stats"].get("unique_graphs"))


def _eval_frame() -> Any:
    return sys.modules.get("torch._dynamo.eval_frame")


def _filters() -> list[Any]:
    return [one for one in warnings.filters if getattr(one[1], "pattern", None) == GLOBAL_HOOKS]
