"""The stance of torch's compiler, which is one for the whole process: eager while anybody counts.

torch keeps it in `torch._dynamo.eval_frame._stance`, and each `set_stance` puts back what it found (alike in torch 2.6
to 2.13). Two that overlap without nesting therefore leave the first one's stance behind. Here it has one owner.
"""

import os
import sys
import warnings
from threading import RLock
from types import FrameType
from typing import Any
from weakref import WeakSet

GLOBAL_HOOKS = "Using .torch.compile.module.. when there are global hooks on modules"
"""How compiled modules complain about hooks on all modules, which make no difference to them."""


class EagerStance:
    """Make compiled code run eagerly while somebody holds this, and then as before.

    Holders may end in any order and on any thread, and are held weakly. Whatever is changed is known before it is
    changed, so that `reconcile` can finish what an interrupt cut short. A stance that somebody else sets meanwhile is
    theirs, and stays.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # a collection within may free a holder, which lets go
        self._holders: WeakSet[object] = WeakSet()
        self.ours: Any = None
        """The stance that is in force for the holders; None while there are none."""
        self._before: Any = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def hold(self, holder: object) -> None:
        """Run eagerly from here on. Twice is once. Where torch's compiler was never imported, nothing is compiled."""
        with self._lock:
            self._holders.add(holder)
            self.reconcile()
            frame = _eval_frame()
            if frame is not None and frame._stance is not self.ours:  # noqa: SLF001 there is no public way to ask
                self._before = frame._stance  # noqa: SLF001 somebody else has set it since
                frame._stance = self.ours  # noqa: SLF001 as in `reconcile`

    def release(self, holder: object) -> None:
        """Run eagerly no more, if nobody else holds this."""
        with self._lock:
            self._holders.discard(holder)
            self.reconcile()

    def reconcile(self) -> None:
        """Make the stance, and the filter of warnings, what the holders who are left ask for."""
        with self._lock:
            frame = _eval_frame()
            if frame is None:
                return
            if len(self._holders):
                if self.ours is None:
                    self._before = frame._stance  # noqa: SLF001 as above
                    self.ours = frame.DynamoStance("force_eager")
                    # `set_stance` sets it before anybody knows what was there, and refuses while a compiled function
                    # runs; to set it is safe there too: it is read where such a function is entered or left
                    frame._stance = self.ours  # noqa: SLF001
                if not _filters():
                    warnings.filterwarnings("ignore", GLOBAL_HOOKS)
                return
            for ours in _filters():
                warnings.filters.remove(ours)  # type: ignore[attr-defined] # it is a list
            ours, before = self.ours, self._before
            if ours is not None:
                vars(ours).update(vars(before))  # a `with set_stance` that began meanwhile will put ours back
                if frame._stance is ours:  # noqa: SLF001 as above
                    frame._stance = before  # noqa: SLF001 as above
                self.ours = self._before = None

    def _forked(self) -> None:
        """In a child, nobody releases a lock that another thread held."""
        self._lock = RLock()


STANCE = EagerStance()
"""Of this process."""


def in_compiled_call() -> bool:
    """Tell if a call of something compiled is under way in this thread, though it may run eagerly.

    When such a call ends, torch puts back the thread's dispatch keys, and thereby whether modes are listened to. A mode
    that is pushed in it goes deaf; after one that is popped in it every operation fails.
    """
    eval_frame = _eval_frame()
    if eval_frame is None:
        return False
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 the one way to the caller
    while frame is not None:
        if frame.f_code.co_filename == eval_frame.__file__:
            return True
        frame = frame.f_back
    return False


def _eval_frame() -> Any:
    return sys.modules.get("torch._dynamo.eval_frame")


def _filters() -> list[Any]:
    return [one for one in warnings.filters if getattr(one[1], "pattern", None) == GLOBAL_HOOKS]
