"""The fits of one accelerator: when one begins, what it continues from, and how it ends."""

import atexit
import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from perf_callbacks.integrations import saved_counters
from perf_callbacks.integrations.accelerate_watch import AcceleratedWatch
from perf_callbacks.integrations.loop_usage import ACCELERATE, LoopUsage
from perf_callbacks.integrations.prepared import Prepared, Told
from perf_callbacks.kernel.batches.reader import Batch, BatchReader
from perf_callbacks.kernel.failures import fails_open
from perf_callbacks.kernel.fit.item import Batches
from perf_callbacks.kernel.fit.place import Place, by_meshes
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.setup import Setup
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.session import Session

P = ParamSpec("P")
T = TypeVar("T")

TAKEN_OVER = "another attach(accelerator) took over"
FREED = "the accelerator was freed"

_all: "weakref.WeakSet[Fits]" = weakref.WeakSet()


class Fits:
    """Measures what an accelerator trains, from the first batch or backward of training on."""

    def __init__(
        self,
        session: Session,
        accelerator: Any,
        place: Callable[[Any, Mapping[str, Any] | None], Place],
        resume: Mapping[str, Any] | None,
        batches: Callable[[tuple[Any, ...]], Batches] = lambda _: Batches(),
        *,
        armed: bool = False,
    ) -> None:
        self._session = session
        self._batches = batches
        self._accelerator: Callable[[], Any] = weakref.ref(accelerator)
        self._place = place
        self._carried = None if resume is None else dict(resume)
        self._state = dict(resume or {})
        self._reader = BatchReader()
        self._before: tuple[int, Batch] | None = None  # with the id of its loader
        self._prepared = Prepared(self)
        self.watch: AcceleratedWatch | None = None
        """The watch of the current fit. None between fits."""
        self.told: Told = self
        """Whom measured loaders tell: who watches the fit, else us."""
        self._shown = True
        """The closing card of the last fit was shown."""
        self.patches = Patches()
        """Changes that last for as long as it is attached."""
        self.kind: type = type(accelerator)
        """The class of the accelerator while it is attached."""
        self.active = session.enabled
        """False: closed, failed, or turned off by the configuration."""
        self._freed = weakref.finalize(accelerator, _close_freed, weakref.ref(self))
        self._freed.atexit = False
        self.armed = armed
        """The program doesn't know of us, so it need not say when its training ends."""
        self._at_exit = functools.partial(_close_at_exit, weakref.ref(self))

    @property
    def state(self) -> dict[str, Any]:
        """State that a checkpoint has to carry."""
        return dict(self._state) if self.watch is None else self.watch.recorder.state

    @fails_open
    def see(self, prepared: object) -> None:
        """The accelerator has prepared something."""
        for one in self._prepared.see(prepared):
            if self.watch is not None:
                self.watch.add(one)

    @fails_open
    def fetch(self, loader: object) -> None:
        """The loop asks a loader for a batch, and no fit has begun."""
        if torch.is_grad_enabled() and any(model.training for model in self._prepared.models):
            self.begin()
        if self.watch is not None:
            self.watch.fetch(loader)

    @fails_open
    def fetched(self, loader: object, batch: object) -> None:
        """A loader has handed over a batch. No fit has begun, but maybe this is what it will begin with."""
        self._before = id(loader), self._reader.read(batch)

    def exhausted(self) -> None:
        """A loader has no more."""

    leave = exhausted

    @fails_open
    def begin(self) -> None:
        """Training begins. What it takes to measure it has been prepared by now, or it is not ours to measure."""
        models, optimizers = self._prepared.models, self._prepared.optimizers
        if self.watch is not None or not models or not optimizers:
            return
        self._take_over(optimizers[0])
        place = by_meshes(self._place(self._accelerator(), self._carried), models[0])
        self._shown = False
        setup = Setup(optimizers=tuple(optimizers), loaders=self._prepared.loaders[:1])
        watch = self._session.begin(
            place, self._watching, models[0], lambda _: self._batches(self._prepared.loaders), setup=lambda: setup
        )
        if not self.armed:
            watch.recorder.observe(LoopUsage(watch, ACCELERATE, has_loader=bool(self._prepared.loaders)))
        else:
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)  # to be called before the recorder's own, which would call the fit cut short

    def _watching(self, recorder: Recorder) -> AcceleratedWatch:
        recorder.patches.add(functools.partial(self._ended, recorder))
        model, optimizer = self._prepared.models[0], self._prepared.optimizers[0]
        self.watch = self.told = AcceleratedWatch(
            recorder, model, optimizer, self._before, kind=self.kind, prepared=self._prepared
        )
        return self.watch

    def _take_over(self, optimizer: object) -> None:
        """Whoever counts the steps of this optimizer for an accelerator that was given up does so no more."""
        for other in [*_all]:
            if other.watch is not None and other.watch.counts(optimizer):
                other.close(TAKEN_OVER)
        _all.add(self)

    @fails_open
    def row(self) -> dict[str, float] | None:
        """Metrics of the steps since the last row."""
        return None if self.watch is None else self.watch.recorder.row(self.watch.steps)

    @fails_open
    def save(self, directory: Path) -> None:
        """A checkpoint was written there."""
        if self.state:
            saved_counters.write(directory, self._accelerator().process_index, self.state)

    @fails_open
    def load(self, directory: Path) -> None:
        """A checkpoint was loaded from there: training goes on from another point, in a fit of its own."""
        self._end()
        self._carried = saved_counters.read(directory, self._accelerator().process_index)
        self._state = dict(self._carried)

    @fails_open
    def free(self) -> None:
        """Let go of everything that was trained; what is prepared next is a fit of its own."""
        self._end()
        self._tell()
        self._carried = self._before = None
        self._prepared.forget()

    @fails_open
    def close(self, failure: str | None = None) -> None:
        """Stop measuring and put everything back. Twice is once."""
        if self._session.recorder is None and failure is None and not self.armed:
            log.warning(
                "perf_callbacks measured nothing: call attach(accelerator) before accelerator.prepare(...), and "
                "prepare the model and its optimizer with that accelerator."
            )
        self._end(failure)
        if failure is None:
            self._tell()
        self._detach()

    def fail(self, error: Exception) -> None:
        """Say once that something of ours went wrong, stop measuring, undo every change."""
        try:
            self._session.fail(error)
        finally:
            with suppress(Exception):  # it has been said that something is wrong
                self._detach()

    def _end(self, failure: str | None = None) -> None:
        self._session.end(failure)
        if self._session.recorder is not None and self._session.recorder.failed:
            self._detach()

    def _tell(self) -> None:
        """The last fit, as a person sees it."""
        shown, self._shown = self._shown, True
        if not shown:
            self._session.show_summary()

    def _ended(self, recorder: Recorder) -> None:
        """A recorder has closed. After a failure there is no other."""
        self.watch, self.told, self._state = None, self, recorder.state
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


def _close_freed(reference: "weakref.ref[Fits]") -> None:
    """End the measuring of an accelerator that nobody can train with any more."""
    fits = reference()
    if fits is not None:
        fits.close(None if fits.armed else FREED)


def _close_at_exit(reference: "weakref.ref[Fits]") -> None:
    """End the fit of a program that never says that its training has ended, unless an exception has ended it."""
    fits = reference()
    if fits is not None and not hasattr(sys, "last_value"):
        fits.close()
