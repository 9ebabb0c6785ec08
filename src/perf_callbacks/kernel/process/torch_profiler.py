"""Records the profiled steps of a fit with torch.profiler. A process can run only one profiler at a time."""

import gc
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function, supported_activities

from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.patches import Patches

YIELD_SECONDS = 60.0
"""Longest wait of another thread's profiler until our recording stops."""

_BEGINNINGS = (
    (autograd_profiler.profile, "_prepare_trace"),
    (autograd_profiler.profile, "_start_trace"),
    (getattr(autograd_profiler, "emit_nvtx", None), "__enter__"),
    (getattr(autograd_profiler, "emit_itt", None), "__enter__"),
    (getattr(getattr(torch.autograd, "profiler_legacy", None), "profile", None), "__enter__"),
)
"""Functions that begin a profiler. While another is running, a call raises an error or crashes torch."""


class StepProfiler:
    """Records steps, on the training thread, until the program begins a profiler of its own."""

    def __init__(self, kind: str, begin: Callable[[Patches], object] = id) -> None:
        """`kind`, such as "cuda", is recorded if torch can. Patches of `begin` last as long as the recording."""
        # Not torch's `profile`, which would count our steps for all profilers of the process.
        from torch.profiler.profiler import _KinetoProfile  # noqa: PLC0415 may not exist in other versions of torch

        wanted = {ProfilerActivity.CPU, getattr(ProfilerActivity, kind.upper(), ProfilerActivity.CPU)}
        # No stacks: they make traces a third larger, and each call of Python slower (docs/profile.md).
        activities: set[ProfilerActivity] = supported_activities()  # type: ignore[no-untyped-call]
        self._profiler: Any = _KinetoProfile(activities=[*wanted & activities], record_shapes=True)
        self._begin = begin
        self._step: Any = None
        self._patches = Patches()
        self._thread = get_ident()
        self._stopped = Event()
        self._recording = False
        self.running = False
        """True: steps are recorded, and the program has not begun its own profiler."""

    def start(self, step: int) -> None:
        for owner, name in _BEGINNINGS:
            self._patches.replace(owner, name, self._yielding)
        self.running = self._recording = True  # from here on, `stop` is needed
        _recording.add(self._thread)
        self._profiler.start()
        self._begin(self._patches)
        self.mark(step)

    def mark(self, step: int) -> None:
        self._end_step()
        self._step = record_function(f"ProfilerStep#{step}")
        self._step.__enter__()

    def stop(self) -> None:
        """Idempotent."""
        self.running = False
        with ExitStack() as steps:
            steps.callback(self._stopped.set)
            steps.callback(self._patches.restore)
            if self._recording:
                self._recording = False
                steps.callback(_recording.discard, self._thread)
                steps.callback(self._profiler.stop)
                steps.callback(self._end_step)

    def export(self, path: Path) -> None:
        """Write the trace, and free its memory. Raise `OSError` if torch wrote no trace."""
        recorded, self._profiler = self._profiler, None
        partial = path.with_name(f"{path.name}.tmp")  # torch renames the file at the end
        try:
            recorded.export_chrome_trace(str(path))
            if partial.exists():
                raise OSError("torch.profiler could not write the trace; the disk may be full")
        finally:
            partial.unlink(missing_ok=True)

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def _yielding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Stop this recording before the program's begins, on the recording thread: any other thread waits for it."""

        def begin(other: Any, *args: Any, **kwargs: Any) -> Any:
            ours = self._profiler is None or other is self._profiler.profiler
            if self.running and not ours:
                self.running = False
                with suppress(Exception):  # the program's profiler must not fail because of ours
                    if get_ident() == self._thread:
                        self.stop()
                    elif not self._stopped.wait(YIELD_SECONDS):
                        self._recording = False  # torch would crash if this recording ended after the other's begin
            return original(other, *args, **kwargs)

        return begin


def foreign() -> bool:
    """Return True if the program's profiler records, or warms up, when a second profiler would crash torch.

    Only its Python object shows a warm-up. True also without such an object but with no end, as after `gc.freeze`.
    """
    from torch._C._autograd import _profiler_enabled  # noqa: PLC0415 torch has no public name

    if _profiler_enabled() or getattr(autograd_profiler, "_is_profiler_enabled", False):  # the latter in any thread
        return True
    profilers = [item for item in gc.get_objects() if issubclass(type(item), profile)]
    warm = [profiler for profiler in profilers if getattr(profiler, "current_action", None) is ProfilerAction.WARMUP]
    if "ProfilerStep" in getattr(autograd_profiler.KinetoStepTracker, "_step_dict", ()):  # a profiler has not ended
        return bool(warm) or not profilers
    return any(
        [getattr(profiler.profiler, "kineto_results", profiler) is None for profiler in warm]
    )  # else ended in its warm-up


def graph_nodes() -> int:
    """Return the nodes that this thread has added to autograd's graphs, about one per forward operation."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined] # noqa: SLF001 nothing public


_recording: set[int] = set()


def _in_child() -> None:
    """In a forked child, a running recording would keep each operation for ever."""
    with suppress(Exception):  # our errors must not stop a worker
        if get_ident() in _recording:
            from torch._C._autograd import _enable_record_function  # noqa: PLC0415 torch has no public name

            _enable_record_function(False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
