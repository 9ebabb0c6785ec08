"""One fit after the other, with one accelerator: when measuring begins, what it goes on from, and how it ends."""

import functools
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from perf_callbacks.checklist.item import Batches
from perf_callbacks.core.batches import Batch, BatchReader
from perf_callbacks.core.records import Checklist
from perf_callbacks.core.settings import Settings
from perf_callbacks.doors.accelerate_watch import AcceleratedWatch
from perf_callbacks.doors.prepared import Prepared, Told
from perf_callbacks.host import saved_counters
from perf_callbacks.host.failures import describe, fails_open
from perf_callbacks.host.patches import Patches
from perf_callbacks.host.place import Place, by_meshes
from perf_callbacks.report import cards
from perf_callbacks.session import counting, startup
from perf_callbacks.session.recorder import Recorder, log

P = ParamSpec("P")
T = TypeVar("T")

TAKEN_OVER = "another attach(accelerator) took over"
FREED = "the accelerator was freed"

_all: "weakref.WeakSet[Fits]" = weakref.WeakSet()


class Fits:
    """Measures what an accelerator trains, from the first batch or backward of training on."""

    def __init__(
        self,
        settings: Settings,
        accelerator: Any,
        place: Callable[[Any, Mapping[str, Any] | None], Place],
        resume: Mapping[str, Any] | None,
        batches: Callable[[tuple[Any, ...]], Batches] = lambda _: Batches(),
    ) -> None:
        self._settings = settings
        self._batches = batches
        self._accelerator: Callable[[], Any] = weakref.ref(accelerator)
        self._place = place
        self._carried = None if resume is None else dict(resume)
        self._state = dict(resume or {})
        self._reader = BatchReader()
        self._before: tuple[int, Batch] | None = None  # with the id of its loader
        self._prepared = Prepared(self)
        self.watch: AcceleratedWatch | None = None
        """What watches the current fit. None between fits."""
        self.told: Told = self
        """Whom measured loaders tell: who watches the fit, else us."""
        self.recorder: Recorder | None = None
        """Of the current fit, or the last one."""
        self._untold: Recorder | None = None
        self.patches = Patches()
        """Changes that last for as long as it is attached."""
        self.kind: type = type(accelerator)
        """The class of the accelerator while it is attached."""
        self.active = settings.config.enabled
        """Whether it measures, or will: not once it is closed, failed, or where the configuration says so."""
        self._freed = weakref.finalize(accelerator, _close_freed, weakref.ref(self))
        self._freed.atexit = False

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint has to carry."""
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
        self.recorder = self._untold = recorder = Recorder(self._settings, place)
        recorder.patches.add(functools.partial(self._ended, recorder))
        try:
            rows = self._start(recorder, place)
        except BaseException as error:  # an interrupt too, in which nobody would close it
            recorder.close(describe(error))
            raise
        if recorder.active and recorder.run.rank == 0:
            card = cards.opening(recorder.run, journal=recorder.journal_path, checklist=rows)
            print(card)  # noqa: T201 what a person sees

    def _start(self, recorder: Recorder, place: Place) -> tuple[Checklist, ...]:
        model, optimizer = self._prepared.models[0], self._prepared.optimizers[0]
        self.watch = self.told = watching = AcceleratedWatch(recorder, model, optimizer, self._before)
        if recorder.active:
            watching.install()
            watching.add_accelerator(self.kind)
            for one in self._prepared:
                watching.add(one)
            counting.begin(recorder, model)
        return startup.start(recorder, self._settings, place.device, self._batches(self._prepared.loaders))

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
        """What was trained is let go of; what is prepared next is a fit of its own."""
        self._end()
        self._tell()
        self._carried = self._before = None
        self._prepared.forget()

    @fails_open
    def close(self, failure: str | None = None) -> None:
        """Stop measuring and put everything back. Twice is once."""
        if self.recorder is None and failure is None:
            log.warning(
                "perf_callbacks measured nothing: call attach(accelerator) before accelerator.prepare(...), and "
                "prepare the model and its optimizer with that accelerator."
            )
        self._end(failure)
        if failure is None:
            self._tell()
        self._detach()

    def fail(self, error: Exception) -> None:
        """Something of ours went wrong: say so once, stop measuring, put everything back."""
        if self.recorder is not None:
            self.recorder.fail(error)
        else:
            log.warning("perf_callbacks could not begin, training goes on: %s.", describe(error), exc_info=error)
        with suppress(Exception):  # it has been said that something is wrong
            self._detach()

    def _end(self, failure: str | None = None) -> None:
        if self.recorder is None:
            return
        self.recorder.close(failure)
        if self.recorder.failed:
            self._detach()

    def _tell(self) -> None:
        """The last fit, as a person sees it."""
        untold, self._untold = self._untold, None
        if untold is not None and untold.run.rank == 0 and untold.summary is not None:
            print(cards.closing(untold.summary))  # noqa: T201 what a person sees

    def _ended(self, recorder: Recorder) -> None:
        """A recorder has closed. After a failure there is no other."""
        self.watch, self.told, self._state = None, self, recorder.state
        if recorder.failure is not None:
            self._detach()

    def _detach(self) -> None:
        self.active = False
        self._before = None
        self._freed.detach()
        try:
            self.patches.restore()
        finally:
            self._prepared.forget()


def _close_freed(reference: "weakref.ref[Fits]") -> None:
    """End the measuring of an accelerator that nobody can train with any more."""
    fits = reference()
    if fits is not None:
        fits.close(FREED)
