"""Records one fit: connects the engine to the real clock, to the garbage collector, and to the journal.

A recorder never ends, stalls or skews training. The first error of our code is logged and ends measuring. All changes
are undone then, at the end of the fit, or at the interpreter's exit.
"""

import atexit
import dataclasses
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from torch._C import DisableTorchFunction, _is_torch_function_mode_enabled

from perf_callbacks.kernel.batches.reader import ROWS, UNREADABLE, Batch, BatchReader, Lookup, shape_of
from perf_callbacks.kernel.clock import perf_counter
from perf_callbacks.kernel.engine.engine import Engine
from perf_callbacks.kernel.engine.marks import Mark, Pause
from perf_callbacks.kernel.engine.observer import Observer, Observers
from perf_callbacks.kernel.engine.window_sharing import Ranks
from perf_callbacks.kernel.failures import class_name, describe, fails_open, guard
from perf_callbacks.kernel.fit import chain, location as fit_location
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.fit.logged_metrics import Logged
from perf_callbacks.kernel.foreign_errors import let_pass, of_handler
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.process.gc_observer import GcObserver
from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.kernel.process.unraisable import UNRAISABLE
from perf_callbacks.kernel.process.waits import WAITS
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.fit_records import Amounts, Record, Summary
from perf_callbacks.kernel.records.journal_file import Journal
from perf_callbacks.kernel.settings.resolution import Settings
from perf_callbacks.kernel.weak_calls import weakly

EMPTY_ROWS = 3
"""Empty rows in a row that cause a warning. A single one is harmless."""

log = logging.getLogger("perf_callbacks")

T = TypeVar("T")


class Recorder:
    """Measures one fit from `__init__` until `close`."""

    autocast: Any = None
    """Dtype of a `torch.autocast` around the model's call."""

    def __init__(
        self,
        settings: Settings,
        location: FitLocation,
        *,
        ranks: Ranks | None = None,
        training: Mapping[str, Any] = MappingProxyType({}),
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """The recorder closes `ranks`. `training` are fields of `Run` about the model and its batches."""
        config = self.config = settings.config
        self.clock, self.device, self.on_event, self.ranks = clock, location.device, settings.on_event, ranks
        self.patches = Patches()
        self.failure: str | None = None
        self.failed = False
        """True if our code raised an error at any time, even at the very end of the fit."""
        self._summary: Summary | None = None
        self._empty_rows, self._warned, self._ambiguous = 0, False, fit_location.Ambiguity(location)
        self._late: BaseException | None = None
        self._left_after: int | None = None  # number of the step after which the loop left its loader
        timing = device.device_at(location.device).timing()
        self.run = fit_location.opening(settings, location, timing, training)
        job_settings = ranks.agree() if ranks is not None else None
        if job_settings is not None:
            self.run = dataclasses.replace(self.run, run_id=job_settings.run_id)
        began = clock()
        directory = fit_location.output_directory(config, location, self.run, id_shared=job_settings is not None)
        directory = directory or Path((job_settings and job_settings.directory) or location.directory)
        self._journal = fit_location.new_journal(config, location.rank, directory, began, clock)
        self.run = dataclasses.replace(self.run, last_sign_unix=fit_location.last_sign(self._journal))
        self.chain = chain.before(location.carried, location.step, self.run)
        self.logged = Logged(config.metrics)
        self.observers = Observers()
        self.engine = Engine(
            self.run,
            self.write,
            earlier=fit_location.earlier(location),
            device=timing.timeline,
            staged=timing.unstaged is None,
            ranks=ranks,
            devices=location.devices,
            data_parallel=location.data_parallel,
            ambiguous=self._ambiguous,
            gc_timed=config.gc != "off",
            observers=self.observers,
        )
        self.reader = BatchReader(self.observers.shape_seen)
        self.reader.modes, self.reader.unseen = _is_torch_function_mode_enabled, DisableTorchFunction
        self.tape = self.engine.tape
        """Wrappers write marks directly on it, which is faster than a call of `enter`."""
        self._observer, self._swallowed = GcObserver(weakly(self.on_collection), clock), weakly(self.on_swallowed)
        self.collect_calls = self._observer.calls
        self._at_exit, self.active = weakly(self._interpreter_exits), True
        self.progress_of = weakly(self._progress)
        """Returns the steps done and the seconds of the longest; None once the recorder was freed or closed."""
        # No other global may hold a strong reference to us: if no exit was seen, the trainer would never be freed.
        self._abandon = weakref.finalize(self, _abandon, self._observer, self._journal, self._swallowed)
        atexit.register(self._at_exit)
        with guard(self.fail):
            self.engine.start(began)
            UNRAISABLE.join(self._swallowed)
            if self.run.world_size > 1:
                self.patches.add(WAITS.watch(self, self.tape if self.engine.waits_timed else None, clock))
            if self.config.journal:
                WATCHDOG.watch(self)
            if self.config.gc != "off":
                self._observer.install()

    def enter(self, mark: Mark) -> None:
        try:
            self.tape.write((mark, self.clock()))
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def batch(self, batch: Any) -> None:
        if not self.active:
            return
        try:
            reader, engine = self.reader, self.engine
            lookup = None
            if engine.takes_batches and reader.by_shapes:
                try:
                    lookup = reader.by_shapes.get(
                        tuple(map(shape_of, batch))
                        if type(batch) in ROWS
                        else (*batch.keys(), *map(shape_of, batch.values()))
                    )
                except UNREADABLE as error:
                    let_pass(error)
            if lookup is not None:
                engine.batches.append(lookup)
                return
            lookup = reader.read(batch)
            if not engine.open_spans:  # as `Engine.batch`, without its frame
                engine.batches.append(lookup)
                if len(engine.batches) >= engine.relieve_at:
                    engine.relieve()
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def add(self, batch: Batch) -> None:
        if not self.active:
            return
        try:
            self.engine.batch(batch)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def end_step(self, step: int, *, begins: bool = True) -> None:
        """With `begins=False`, the next step begins only when `begin_step` is called."""
        try:
            if step >= self.observers.due:
                self._end_due_step(step, begins=begins)
            else:
                self.engine.end_step(step, self.clock())
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def _end_due_step(self, step: int, *, begins: bool) -> None:
        if not self.active:
            return
        if self._late is not None:
            late, self._late = self._late, None
            self.fail(late)
            return
        self.observers.step_ended(step)
        self.engine.end_step(step, self.clock())
        if begins:
            self.observers.step_began()

    @fails_open
    def begin_step(self) -> None:
        self.observers.step_began()

    def observe(self, observer: Observer) -> None:
        self.patches.add(observer.closed)
        self.observers.add(observer)
        self.attempt(lambda recorder: recorder.engine.plan())  # an observer that watches steps sees them sooner

    @fails_open
    def leave(self, *, exhausted: bool = False) -> None:
        """The training loop stops reading from its data loader. Training may be over."""
        self._left_after = self.step
        self.observers.loader_left(exhausted=exhausted)

    @fails_open
    def begin_span(self, kind: str) -> None:
        self.engine.begin_span(kind, self.clock())
        self.observers.span_began(kind, self.engine.step)
        if kind == "checkpoint":  # an attempt that resumes from this checkpoint then finds all earlier records
            self._journal.flush()
            self.engine.flush_at = 0.0  # Lightning saves within a step: this step is written when the step ends

    @fails_open
    def end_span(self) -> None:
        self.observers.span_ended()
        self.engine.end_span(self.clock())

    @fails_open
    def look_up(self, lookups: Iterable[Lookup]) -> None:
        """Find the tensors that hold token ids, from the embedding look-ups of the step that is ending."""
        if self.reader.look_up(lookups):
            self.engine.tell_tokens(self.reader.with_tokens)

    @property
    def step(self) -> int:
        return self.engine.step

    @property
    def data_parallel(self) -> int | None:
        return None if self._ambiguous(self.step) else self.run.data_parallel

    @property
    def exchanging(self) -> bool:
        """True: the ranks exchange windows of steps, or may still begin to."""
        ranks = self.ranks
        return ranks is not None and (ranks.job_settings is None or ranks.job_settings.window is not None)

    def write(self, record: Record) -> None:
        self._journal.write(record)
        self.observers.record_written(record)

    @fails_open
    def row(self, step: int) -> dict[str, float]:
        """Return the metrics that the setting `metrics` selects, for the steps since the last row."""
        metrics = self.engine.row(step)
        why_empty = None if metrics else self.engine.why_empty
        self._empty_rows = 0 if metrics else self._empty_rows + (why_empty is not None)
        if self._empty_rows == EMPTY_ROWS and why_empty is not None and self.run.rank == 0 and not self._warned:
            self._warned = True
            text = "perf_callbacks: no metrics at step %s: all steps since the last row are excluded (%s)."
            log.warning(text, step, why_empty)
        return self.logged.row(metrics)

    @fails_open
    def whole(self, step: int) -> dict[str, float]:
        """Return the metrics `perf/run/…`, after a short wait for the last times from the device."""
        self._drain()
        return self.logged.run(self.engine.whole(step))

    @fails_open
    def attempt(self, action: Callable[["Recorder"], object]) -> None:
        """An error in `action` ends the measuring, but not the training."""
        action(self)

    @property
    def state(self) -> dict[str, Any]:
        """For a checkpoint: a fit that resumes from it continues these counts."""
        amounts = self._asked(self.engine.amounts) or Amounts(samples=None, tokens=None)
        seconds = self._asked(lambda: self.clock() - self.engine.account.began)
        run, productive = self.run, self._asked(self.engine.productive_seconds)
        identity = {"run_id": run.run_id, "attempt": run.attempt, "rank": run.rank, "step": self.engine.step}
        return {**identity, **dataclasses.asdict(amounts), **self.chain.state(run, seconds, productive)}

    @property
    def summary(self) -> Summary | None:
        return self._summary or self._asked(lambda: self.engine.summary(self.failure, self.clock()))

    def _asked(self, answer: Callable[[], T]) -> T | None:
        """Return None after an error, but answer even if the recorder is closed."""
        with guard(self.fail):
            return answer()
        return None

    @property
    def journal_path(self) -> Path | None:
        return self._journal.path

    def fail(self, error: BaseException) -> None:
        """Log our first error and undo all changes. The error of a program's signal handler is raised again."""
        foreign = of_handler(error) if isinstance(error, Exception) else error
        if not self.failed:
            self.failed = True
            if foreign is not None:  # the interrupted code may be half done
                log.warning("perf_callbacks stopped measuring: a signal handler raised %s within it.", describe(error))
            else:
                log.warning("perf_callbacks stopped measuring, training goes on: %s.", describe(error), exc_info=error)
        try:
            self.close(error)
        finally:
            if foreign is not None:
                raise foreign

    def close(self, failure: str | BaseException | None = None) -> None:
        """Stop measuring and undo all changes. Idempotent. `failure` is an exception that ends the fit, or a text."""
        if not self.active:
            return
        self.observers.always_due()  # the end of a step then only checks if the recorder is closed
        late, self._late = self._late, None
        if late is not None and not self.failed:
            self.fail(late)
            return
        error = failure if isinstance(failure, BaseException) else None
        self.failure = class_name(failure) if isinstance(failure, BaseException) else failure
        self.active = False
        atexit.unregister(self._at_exit)
        with ExitStack() as steps:  # an interrupt in a callback must not skip the rest
            steps.callback(UNRAISABLE.leave, self._swallowed)
            steps.callback(WATCHDOG.hurry)
            steps.callback(self.tape.ignore)
            if self.ranks is not None:
                steps.callback(self._asked, self.ranks.close)
            steps.callback(self._asked, self._journal.close)
            steps.callback(self._asked, self._finish)
            steps.callback(self._asked, self.observers.before_summary)
            steps.callback(self._asked, self._observer.remove)
            steps.callback(self._asked, self.patches.restore)
            if error is not None and not self.failed:
                steps.callback(self._asked, partial(self.observers.exception_raised, error))
            if error is not None:  # runs code of the error's class
                self.failure = describe(error)
        self._abandon.detach()  # after an interrupt the finalizer stays, and does the rest when we are freed

    def _drain(self) -> None:
        self.engine.step_reader.drain(self.clock, failed=self.failure is not None)

    def _finish(self) -> None:
        self._drain()
        self._summary = self.engine.stop(self.clock(), self.failure)

    def _interpreter_exits(self) -> None:
        error = getattr(sys, "last_value", None)  # the exception that ended the program
        self.close("the interpreter exited" + (f" after {describe(error)}" if error is not None else ""))

    def _progress(self) -> tuple[int, float] | None:
        return (self.step, self.engine.step_reader.longest_step) if self.active else None

    def tick(self, now: float) -> bool:  # noqa: ARG002 what counts is the recorder's clock
        """Write finished steps that have waited long, for the watchdog. Return False once the fit has ended."""
        if self.active:
            self.engine.write_late(self.clock())
            self._journal.flush()
        return self.active

    def on_collection(self, pause: Pause) -> None:
        """This may interrupt our own code. An error is handled when the step ends."""
        try:
            self.engine.pause(pause)
        except Exception as error:  # noqa: BLE001 gc prints what a callback raises, every time
            self._late = error
            self.observers.always_due()
            self._observer.remove()

    def on_swallowed(self, error: BaseException) -> bool:
        """Store a handler's exception that Python would swallow, for the step's end. False: too late, or another is."""
        if not self.active or self._late is not None or self.step == self._left_after:
            return False
        self._late = error
        self.observers.always_due()
        return True


def _abandon(observer: GcObserver, journal: Journal, swallowed: Callable[[BaseException], bool | None]) -> None:
    UNRAISABLE.leave(swallowed)
    observer.remove()
    journal.close()
