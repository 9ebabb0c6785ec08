"""Owner of the stance of torch's compiler (`torch.compiler.set_stance`): eager while FLOPs are counted.

torch keeps the stance in `torch._dynamo.eval_frame._stance`. At its end, each `set_stance` restores the stance that it
found (in torch 2.6 to 2.13). If two calls of `set_stance` overlap without nesting, the stance of the first call stays
for good. A single owner of the stance prevents overlapping calls.
"""

import re
import sys
import warnings
from typing import Any

from perf_callbacks.kernel.process.owner import Owner
from perf_callbacks.kernel.process.stacks import callers

GLOBAL_HOOKS = "Using .torch.compile.module.. when there are global hooks on modules"
"""Pattern of torch's warning that global module hooks don't affect compiled modules."""


class EagerStance(Owner[None]):
    """Makes compiled code run eagerly while any object holds this stance.

    If other code has set a stance, that stance stays.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ours: Any = None
        """Eager stance that is in force; None if no object holds it."""
        self._before: Any = None

    def hold(self, holder: object) -> None:
        """Run compiled code eagerly from now on. Idempotent; does nothing without torch's compiler."""
        with self._lock:
            self._claim(holder, None)
            self.reconcile()
            frame = _eval_frame()
            if frame is not None and frame._stance is not self.ours:  # noqa: SLF001 there is no public way to ask
                self._before = frame._stance  # noqa: SLF001 other code has set it since
                frame._stance = self.ours  # noqa: SLF001 as in `reconcile`

    def _arrange(self) -> None:
        """Set the stance and the warning filter that the remaining holders need."""
        frame = _eval_frame()
        if frame is None:
            return
        if self._claims:
            if self.ours is None:
                self._before = frame._stance  # noqa: SLF001 as above
                self.ours = frame.DynamoStance("force_eager")
                # Not by `set_stance`: an interrupt may lose the earlier stance, and the call fails while a compiled
                # function runs. An assignment is safe there: torch reads the stance on entry and exit only.
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


STANCE = EagerStance()
"""The one `EagerStance` of this process."""


def in_compiled_call() -> bool:
    """Return True if a call of compiled code is under way in this thread, even if the code runs eagerly.

    At the end of the call, torch restores the thread's dispatch keys. The dispatch keys also decide whether a
    `TorchDispatchMode` is active. If a mode was pushed during the call, the mode becomes inactive at the end of the
    call. If a mode was popped during the call, every operation fails after the call.
    """
    eval_frame = _eval_frame()
    return eval_frame is not None and any(frame.f_code.co_filename == eval_frame.__file__ for frame in callers())


def anything_compiled() -> bool:
    """Return True if torch's compiler has compiled anything in this process."""
    compiler: Any = sys.modules.get("torch._dynamo.utils")
    return compiler is not None and bool(compiler.counters["stats"].get("unique_graphs"))


def _eval_frame() -> Any:
    return sys.modules.get("torch._dynamo.eval_frame")


def _filters() -> list[Any]:
    return [one for one in warnings.filters if getattr(one[1], "pattern", None) == GLOBAL_HOOKS]
