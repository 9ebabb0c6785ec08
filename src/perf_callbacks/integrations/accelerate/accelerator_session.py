"""Session of one accelerator, which begins fits, continues them from checkpoints, and ends them."""

import atexit
import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import accelerate  # type: ignore[import-untyped]
import torch
from accelerate import Accelerator

from perf_callbacks.integrations import saved_counters
from perf_callbacks.integrations.accelerate.prepared import PreparedObjects
from perf_callbacks.integrations.accelerate.watch import AcceleratedWatch
from perf_callbacks.integrations.loop.usage import ACCELERATE, LoopUsage
from perf_callbacks.integrations.restore_time import RestoreTime
from perf_callbacks.kernel.batches.reader import Batch, BatchReader
from perf_callbacks.kernel.failures import fails_open
from perf_callbacks.kernel.fit.item import Batches
from perf_callbacks.kernel.fit.location import FitLocation, by_meshes, data_parallel
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import TrainingObjects
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.kernel.weak_calls import weakly
from perf_callbacks.session import Session

TAKEN_OVER = "another attach(accelerator) took over"
FREED = "the accelerator was freed"

_all: "weakref.WeakSet[AcceleratorSession]" = weakref.WeakSet()


class AcceleratorSession:
    """Measures training with an accelerator. A fit begins with the first batch or backward of training."""

    def __init__(
        self, session: Session, accelerator: Accelerator, resume: Mapping[str, Any] | None, *, armed: bool
    ) -> None:
        self._session = session
        self._accelerator: Callable[[], Any] = weakref.ref(accelerator)
        self._carried = None if resume is None else dict(resume)
        self._state = dict(resume or {})
        self._reader = BatchReader()
        self._before: tuple[int, Batch] | None = None  # with the id of its loader
        self._prepared = PreparedObjects(self)
        self.restoring = RestoreTime()  # of `load_state` until the next fit begins
        self.watch: AcceleratedWatch | None = None  # None if no fit is running
        self.listener: AcceleratorSession | AcceleratedWatch = self
        """Gets the events of measured loaders: the watch during a fit, this session between fits."""
        self.logged_step: int | None = None  # given by the program in its last call of `log`
        self._shown = True  # whether the closing card of the last fit was shown
        self.patches = Patches()  # to the accelerator, undone when the measurement ends
        self.kind: type = type(accelerator)  # of the accelerator during the measurement
        self.active = session.enabled  # False once closed, failed, or turned off by the configuration
        self._freed = weakref.finalize(accelerator, weakly(self.close), None if armed else FREED)
        self._freed.atexit = False
        self.armed = armed  # a launcher attached this session: the program may end without `end_training()`
        self._at_exit = weakly(self._close_at_exit)

    @property
    def state(self) -> dict[str, Any]:
        return dict(self._state) if self.watch is None else self.watch.recorder.state

    @fails_open
    def see(self, prepared: object) -> None:
        for member in self._prepared.see(prepared):
            if self.watch is not None:
                self.watch.add(member)

    @fails_open
    def fetch(self, loader: object) -> None:
        if torch.is_grad_enabled() and any(model.training for model in self._prepared.models):
            self.begin()
        if self.watch is not None:
            self.watch.fetch(loader)

    @fails_open
    def fetched(self, loader: object, batch: object) -> None:
        """The next fit may begin with a batch that was fetched between two fits."""
        self._before = id(loader), self._reader.read(batch)

    def leave(self, *, exhausted: bool = False) -> None:
        """Between two fits, nothing happens."""

    @fails_open
    def begin(self) -> None:
        models, optimizers = self._prepared.models, self._prepared.optimizers
        if self.watch is not None or not models or not optimizers:
            return
        self._take_over(optimizers[0])
        location = by_meshes(place_of(self._accelerator(), self._carried), models[0])
        location = replace(location, restore_seconds=self.restoring.take())
        self._shown = False
        options = {"bucket_cap_mb": "DistributedDataParallelKwargs"}
        if self._accelerator().mixed_precision == "no":
            options["mixed_precision"] = "Accelerator"
        objects = TrainingObjects(
            optimizers=tuple(optimizers), loaders=self._prepared.loaders[:1], called=models[0], options=options
        )
        watch = self._session.begin(
            location, self._watching, models[0], lambda: _batches(self._prepared.loaders), objects=lambda: objects
        )
        if not self.armed:
            watch.recorder.observe(LoopUsage(watch, ACCELERATE, has_loader=bool(self._prepared.loaders)))
        else:
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)  # runs before the recorder's handler, which reports a fit cut short

    def _watching(self, recorder: Recorder) -> AcceleratedWatch:
        recorder.patches.add(functools.partial(self._ended, recorder))
        self.watch = self.listener = AcceleratedWatch(recorder, self._prepared, self._before, kind=self.kind)
        return self.watch

    def _take_over(self, optimizer: object) -> None:
        for other in [*_all]:
            if other.watch is not None and other.watch.counts(optimizer):
                other.close(TAKEN_OVER)
        _all.add(self)

    @fails_open
    def row(self) -> dict[str, float] | None:
        return None if self.watch is None else self.watch.recorder.row(self.watch.steps)

    @fails_open
    def save(self, directory: Path) -> None:
        if self.state:
            saved_counters.write(directory, self._accelerator().process_index, self.state)

    @fails_open
    def load(self, directory: Path) -> None:
        """End the fit. The next one continues from the checkpoint's counters."""
        self._end()
        self._carried = saved_counters.read(directory, self._accelerator().process_index)
        self._state = dict(self._carried)

    @fails_open
    def free(self) -> None:
        """Objects prepared later belong to a new fit."""
        self._conclude()
        self._carried = self._before = None
        self._prepared.forget()

    @fails_open
    def close(self, failure: str | BaseException | None = None) -> None:
        """Stop measuring and undo every change to the accelerator. Idempotent."""
        if self._session.recorder is None and failure is None and not self.armed:
            log.warning(
                "perf_callbacks measured nothing: call attach(accelerator) before accelerator.prepare(...), and "
                "prepare the model and its optimizer with that accelerator."
            )
        self._conclude(failure)
        self._detach()

    def fail(self, error: Exception) -> None:
        try:
            self._session.fail(error)
        finally:
            with suppress(Exception):  # the error has been logged
                self._detach()

    def _end(self, failure: str | BaseException | None = None) -> None:
        self._session.end(failure)
        if self._session.recorder is not None and self._session.recorder.failed:
            self._detach()

    def _conclude(self, failure: str | BaseException | None = None) -> None:
        accelerator = self._accelerator()
        trackers: list[Any] = []
        averages: Mapping[str, float] | None = None
        if self.watch is not None and failure is None and accelerator is not None and accelerator.is_main_process:
            trackers = accelerator.trackers
            averages = self.watch.recorder.whole(self.watch.steps) if trackers else None
        self._end(failure)
        if failure is None:
            self._show_card()
        for tracker in trackers if averages else ():  # the program may have replaced `log`
            tracker.log(averages, step=self.logged_step)

    def _show_card(self) -> None:
        shown, self._shown = self._shown, True
        if not shown:
            self._session.show_summary()

    def _ended(self, recorder: Recorder) -> None:
        """After a failure, also undo every change to the accelerator."""
        self.watch, self.listener, self._state = None, self, recorder.state
        if recorder.failure is not None:
            self._detach()

    def _detach(self) -> None:
        self.active = False
        self._before = None
        self._freed.detach()
        atexit.unregister(self._at_exit)
        try:
            self.patches.restore()
        finally:
            self._prepared.forget()

    def _close_at_exit(self) -> None:
        """Close at exit, unless an exception ended the program. A tracker may be closed, so averages aren't logged."""
        if not hasattr(sys, "last_value"):
            self._end()
            self.close()


def place_of(accelerator: Accelerator, carried: Mapping[str, Any] | None) -> FitLocation:
    return FitLocation(
        integration="accelerate",
        directory=Path(accelerator.project_dir or "."),
        device=accelerator.device,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
        data_parallel=data_parallel(accelerator),
        step=int((carried or {}).get("step", 0)),
        carried=carried,
    )


def _batches(loaders: tuple[Any, ...]) -> Batches:
    """Accelerate's `skip_first_batches`, called after a resume, returns a loader without `non_blocking`."""
    return Batches(
        pinned=True if loaders and all(getattr(loader, "pin_memory", False) for loader in loaders) else None,
        copied_aside=False,
        loaders=loaders,
        copy=(accelerate.data_loader, "send_to_device"),
    )
