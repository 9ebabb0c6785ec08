"""Record the profiled steps of a fit with torch.profiler. A process can run only one profiler at a time."""

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
"""Longest time, in seconds, for which another thread's profiler waits until our recording stops."""

_BEGINNINGS = (
    (autograd_profiler.profile, "_prepare_trace"),
    (autograd_profiler.profile, "_start_trace"),
    (getattr(autograd_profiler, "emit_nvtx", None), "__enter__"),
    (getattr(autograd_profiler, "emit_itt", None), "__enter__"),
    (getattr(getattr(torch.autograd, "profiler_legacy", None), "profile", None), "__enter__"),
)
"""Functions by which a program begins a profiler. A call of one of these functions while a profiler is already running
raises an error or crashes torch."""


class StepProfiler:
    """Records steps with torch.profiler, until the program begins a profiler of its own.

    The training thread calls all methods.
    """

    def __init__(self, kind: str, begin: Callable[[Patches], object] = id) -> None:
        """Record the host, and the device if torch can record devices of this kind, such as "cuda".

        Args:
            kind: Kind of the device.
            begin: Function that is called when the recording begins. The patches that this function makes are undone
                when the recording ends.
        """
        # Not torch's `profile`, which would count our steps for all profilers of the process.
        from torch.profiler.profiler import _KinetoProfile  # noqa: PLC0415 may not exist in other versions of torch

        wanted = {ProfilerActivity.CPU, getattr(ProfilerActivity, kind.upper(), ProfilerActivity.CPU)}
        # No stacks: they make traces a third larger, and each call of Python slower (docs/profile.md).
        known: set[ProfilerActivity] = supported_activities()  # type: ignore[no-untyped-call]
        self._profiler: Any = _KinetoProfile(activities=[*wanted & known], record_shapes=True)
        self._begin = begin
        self._step: Any = None
        self._patches = Patches()
        self._thread = get_ident()
        self._stopped = Event()
        self._recording = False
        self.running = False
        """True: steps are recorded. False: before and after the recording, and once the program has begun its own
        profiler."""

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
        """End the recording. Idempotent."""
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
        """Write the trace of a stopped recording, and free its memory. Raise `OSError` if torch wrote no trace."""
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
        """Wrap a function that begins a profiler, so that this recording stops first.

        Only the recording thread can stop the recording, so any other thread waits until the recording has stopped.
        """

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
    """Return True if the program's own profiler records in any thread, or may be about to record.

    If a second profiler starts while another profiler warms up, torch crashes. A warm-up shows only in the profiler's
    own Python object. If a profiler has not ended, but no profiler object is found, as after `gc.freeze`, the result is
    True.
    """
    from torch._C._autograd import _profiler_enabled  # noqa: PLC0415 torch has no public name

    if _profiler_enabled() or getattr(autograd_profiler, "_is_profiler_enabled", False):  # the latter in any thread
        return True
    found = [one for one in gc.get_objects() if issubclass(type(one), profile)]
    warm = [one for one in found if getattr(one, "current_action", None) is ProfilerAction.WARMUP]
    if "ProfilerStep" in getattr(autograd_profiler.KinetoStepTracker, "_step_dict", ()):  # a profiler has not ended
        return bool(warm) or not found
    return any([getattr(one.profiler, "kineto_results", one) is None for one in warm])  # else ended in its warm-up


def graph_nodes() -> int:
    """Return the number of nodes that this thread has added to autograd's graphs, about one per forward operation."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined] # noqa: SLF001 nothing public


_recording: set[int] = set()
"""Threads with a recording."""


def _in_child() -> None:
    """Stop the inherited recording in a forked child. A running recording would keep each operation for ever."""
    with suppress(Exception):  # our errors must not stop a worker
        if get_ident() in _recording:
            from torch._C._autograd import _enable_record_function  # noqa: PLC0415 torch has no public name

            _enable_record_function(False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
