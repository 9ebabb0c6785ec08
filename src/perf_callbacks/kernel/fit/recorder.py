"""Record one fit: connect the engine to the real clock, to the garbage collector, and to the journal.

A recorder never ends, stalls or skews training. When our code raises its first error, the error is logged and measuring
ends. All changes are undone when measuring ends: at an error, at the end of a fit, or at the interpreter's exit.
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
from perf_callbacks.kernel.fit import chain
from perf_callbacks.kernel.fit.logged_metrics import Logged
from perf_callbacks.kernel.fit.place import Ambiguity, Place, earlier, last_sign, new_journal, opening, output_directory
from perf_callbacks.kernel.foreign_errors import let_pass, of_handler
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.process.gc_observer import GcObserver
from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.kernel.process.swallowed import SWALLOWED
from perf_callbacks.kernel.process.waits import WAITS
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.fit_records import Amounts, Record, Summary
from perf_callbacks.kernel.records.journal_file import Journal
from perf_callbacks.kernel.settings.in_force import Settings
from perf_callbacks.kernel.weak_calls import weakly

EMPTY_ROWS = 3
"""Number of consecutive empty rows of metrics that causes a warning. A single empty row is harmless."""

log = logging.getLogger("perf_callbacks")

T = TypeVar("T")


class Recorder:
    """Measures one fit from `__init__` until `close`."""

    autocast: Any = None
    """Dtype to which `torch.autocast` around the model's call casts, or None without autocast."""

    def __init__(
        self,
        settings: Settings,
        place: Place,
        *,
        ranks: Ranks | None = None,
        training: Mapping[str, Any] = MappingProxyType({}),
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Begin to measure.

        Args:
            settings: Settings in force.
            place: Place of the fit.
            ranks: Connection to the other ranks, which the recorder closes. None: there is no connection.
            training: Fields of `Run` about the model and its batches.
            clock: Returns seconds.
        """
        config = self.config = settings.config
        self.clock, self.device, self.on_event, self.ranks = clock, place.device, settings.on_event, ranks
        self.patches = Patches()
        self.failure: str | None = None
        self.failed = False
        """True if our code raised an error at any time, even at the very end of the fit."""
        self._summary: Summary | None = None
        self._empty_rows, self._warned, self._ambiguous = 0, False, Ambiguity(place)
        self._late: BaseException | None = None
        self._left_after: int | None = None  # number of the step after which the loop left its loader
        timing = device.of(place.device).timing()
        self.run = opening(settings, place, timing, training)
        job_settings = ranks.agree() if ranks is not None else None
        if job_settings is not None:
            self.run = dataclasses.replace(self.run, run_id=job_settings.run_id)
        began = clock()
        directory = output_directory(config, place, self.run, id_shared=job_settings is not None)
        directory = directory or Path((job_settings and job_settings.directory) or place.directory)
        self._journal = new_journal(config, place, directory, began, clock)
        self.run = dataclasses.replace(self.run, last_sign_unix=last_sign(self._journal))
        self.chain = chain.before(place.carried, place.step, self.run)
        self.logged = Logged(config.metrics)
        self.observers = Observers()
        self.engine = Engine(
            self.run,
            self.write,
            earlier=earlier(place),
            device=timing.timeline,
            staged=timing.unstaged is None,
            ranks=ranks,
            devices=place.devices,
            data_parallel=place.data_parallel,
            ambiguous=self._ambiguous,
            gc_timed=config.gc != "off",
            observers=self.observers,
        )
        self.reader = BatchReader(self.observers.shape_seen)
        self.reader.modes, self.reader.unseen = _is_torch_function_mode_enabled, DisableTorchFunction
        self.tape = self.engine.tape
        """The engine's tape. Wrappers write marks directly on the tape, which is faster than a call of `enter`."""
        self._observer, self._swallowed = GcObserver(weakly(self.on_collection), clock), weakly(self.on_swallowed)
        self.collect_calls = self._observer.calls
        self._at_exit, self.active = weakly(self._interpreter_exits), True
        self.progress_of = weakly(self._progress)
        """Function that returns the number of steps done and the seconds of the longest step. The function returns None
        once the recorder was freed or closed."""
        # No other global may hold a strong reference to us: if no exit was seen, the trainer would never be freed.
        self._abandon = weakref.finalize(self, _abandon, self._observer, self._journal, self._swallowed)
        atexit.register(self._at_exit)
        with guard(self.fail):
            self.engine.start(began)
            SWALLOWED.join(self._swallowed)
            if self.run.world_size > 1:
                self.patches.add(WAITS.watch(self, self.tape if self.engine.waits_timed else None, clock))
            if self.config.journal:
                WATCHDOG.watch(self)
            if self.config.gc != "off":
                self._observer.install()

    def enter(self, mark: Mark) -> None:
        """Write a mark to the tape: the training thread enters or leaves a stage."""
        try:
            self.tape.write((mark, self.clock()))
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def batch(self, batch: Any) -> None:
        """Add a micro-batch to the current step."""
        if not self.active:
            return
        try:
            reader, engine = self.reader, self.engine
            found = None
            if engine.takes_batches and reader.by_shapes:
                try:
                    found = reader.by_shapes.get(
                        tuple(map(shape_of, batch))
                        if type(batch) in ROWS
                        else (*batch.keys(), *map(shape_of, batch.values()))
                    )
                except UNREADABLE as error:
                    let_pass(error)
            if found is not None:
                engine.batches.append(found)
                return
            found = reader.read(batch)
            if not engine.open_spans:  # as `Engine.batch`, without its frame
                engine.batches.append(found)
                if len(engine.batches) >= engine.relieve_at:
                    engine.relieve()
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def add(self, batch: Batch) -> None:
        """Add a micro-batch whose samples and tokens are already known."""
        if not self.active:
            return
        try:
            self.engine.batch(batch)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def end_step(self, step: int, *, begins: bool = True) -> None:
        """End optimizer step `step`. With `begins=False`, the next step begins only when `begin_step` is called."""
        try:
            if step >= self.observers.due:
                self._end_due_step(step, begins=begins)
            else:
                self.engine.end_step(step, self.clock())
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def _end_due_step(self, step: int, *, begins: bool) -> None:
        """End a step whose number is at least `observers.due`."""
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
        """Begin the next step, after an `end_step` with `begins=False`."""
        self.observers.step_began()

    def observe(self, observer: Observer) -> None:
        """Add an observer. The observer receives the events of this fit until the fit ends."""
        self.patches.add(observer.closed)
        self.observers.add(observer)
        self.attempt(lambda recorder: recorder.engine.plan())  # an observer that watches steps sees them sooner

    @fails_open
    def leave(self, *, exhausted: bool = False) -> None:
        """Handle the moment when the training loop stops reading from its data loader. Training may be over."""
        self._left_after = self.step
        self.observers.loader_left(exhausted=exhausted)

    @fails_open
    def begin_span(self, kind: str) -> None:
        """Begin a span, such as an evaluation or a checkpoint."""
        self.engine.begin_span(kind, self.clock())
        self.observers.span_began(kind, self.engine.step)
        if kind == "checkpoint":  # an attempt that resumes from this checkpoint then finds all earlier records
            self._journal.flush()
            self.engine.flush_at = 0.0  # Lightning saves within a step: this step is written when the step ends

    @fails_open
    def end_span(self) -> None:
        """End the innermost span."""
        self.observers.span_ended()
        self.engine.end_span(self.clock())

    @fails_open
    def look_up(self, lookups: Iterable[Lookup]) -> None:
        """Find the tensors that hold token ids, from the embedding look-ups of the step that is ending."""
        if self.reader.look_up(lookups):
            self.engine.tell_tokens(self.reader.with_tokens)

    @property
    def step(self) -> int:
        """The trainer's count of optimizer steps."""
        return self.engine.step

    @property
    def data_parallel(self) -> int | None:
        """Number of ranks with different samples. None: unknown by now."""
        return None if self._ambiguous(self.step) else self.run.data_parallel

    @property
    def exchanging(self) -> bool:
        """Return True if the ranks exchange windows of steps, or may still begin to."""
        ranks = self.ranks
        return ranks is not None and (ranks.job_settings is None or ranks.job_settings.window is not None)

    def write(self, record: Record) -> None:
        """Write a record to the journal, and pass the record to the observers."""
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
        """Return the metrics `perf/run/…` of the whole fit, after a short wait for the last times from the device."""
        self._drain()
        return self.logged.run(self.engine.whole(step))

    @fails_open
    def attempt(self, action: Callable[["Recorder"], object]) -> None:
        """Call `action` with the recorder. An error in `action` ends the measuring, but not the training."""
        action(self)

    @property
    def state(self) -> dict[str, Any]:
        """State to store in a checkpoint. A fit that resumes from the checkpoint continues the counts in this state."""
        amounts = self._asked(self.engine.amounts) or Amounts(samples=None, tokens=None)
        seconds = self._asked(lambda: self.clock() - self.engine.account.began)
        run, productive = self.run, self._asked(self.engine.productive_seconds)
        identity = {"run_id": run.run_id, "attempt": run.attempt, "rank": run.rank, "step": self.engine.step}
        return {**identity, **dataclasses.asdict(amounts), **self.chain.state(run, seconds, productive)}

    @property
    def summary(self) -> Summary | None:
        """Summary of the fit so far."""
        return self._summary or self._asked(lambda: self.engine.summary(self.failure, self.clock()))

    def _asked(self, answer: Callable[[], T]) -> T | None:
        """Return the result of `answer`, even if the recorder is closed. Return None if `answer` raises an error."""
        with guard(self.fail):
            return answer()
        return None

    @property
    def journal_path(self) -> Path | None:
        """Path of the journal; None: there is no journal."""
        return self._journal.path

    def fail(self, error: BaseException) -> None:
        """Log the first error of our code, stop measuring, and undo all changes.

        An error from a signal handler of the program is raised again, so that the program receives the error.
        """
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
        self.observers.hurry()  # the end of a step then only checks if the recorder is closed
        late, self._late = self._late, None
        if late is not None and not self.failed:
            self.fail(late)
            return
        error = failure if isinstance(failure, BaseException) else None
        self.failure = class_name(failure) if isinstance(failure, BaseException) else failure
        self.active = False
        atexit.unregister(self._at_exit)
        with ExitStack() as steps:  # an interrupt in a callback must not skip the rest
            steps.callback(SWALLOWED.leave, self._swallowed)
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
        """Write finished steps that have waited long. The watchdog calls this. Return False once the fit has ended."""
        if self.active:
            self.engine.write_late(self.clock())
            self._journal.flush()
        return self.active

    def on_collection(self, pause: Pause) -> None:
        """Handle a garbage collection, which may interrupt our own code. An error is handled when the step ends."""
        try:
            self.engine.pause(pause)
        except Exception as error:  # noqa: BLE001 gc prints what a callback raises, every time
            self._late = error
            self.observers.hurry()
            self._observer.remove()

    def on_swallowed(self, error: BaseException) -> bool:
        """Store an exception of a signal handler that Python would swallow. The end of the step raises the exception.

        Return False, and store nothing, if an exception is already stored, or if training may be over.
        """
        if not self.active or self._late is not None or self.step == self._left_after:
            return False
        self._late = error
        self.observers.hurry()
        return True


def _abandon(observer: GcObserver, journal: Journal, swallowed: Callable[[BaseException], bool | None]) -> None:
    SWALLOWED.leave(swallowed)
    observer.remove()
    journal.close()
