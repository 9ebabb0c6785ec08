"""State machine that turns the events of an integration into steps, metrics and journal records.

The engine reads no clock: its methods get the time as an argument. When the training thread enters or leaves a stage,
the integration writes a mark on the tape. The integration also calls `batch` for each micro-batch and `end_step` after
each optimizer step. The integration calls `begin_span` and `end_span` around each evaluation or checkpoint.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from perf_callbacks.kernel.batches.reader import Batch, together
from perf_callbacks.kernel.engine import ratios
from perf_callbacks.kernel.engine.account import BEGINNING, Account, Pauses
from perf_callbacks.kernel.engine.ledger import Ledger, reasons
from perf_callbacks.kernel.engine.marks import BACK, BEGIN, END, Pause
from perf_callbacks.kernel.engine.observer import Observers
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.step_reader import DeviceTimeline, StepReader
from perf_callbacks.kernel.engine.steps import (
    BLOCK,
    COUNTED,
    NEVER,
    PROFILED,
    RECOUNTED,
    WATCHED_BLOCK,
    KnownParts,
    Totals,
    plus,
)
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.engine.window_sharing import Ranks, WindowSharing
from perf_callbacks.kernel.engine.work_model import WorkModel
from perf_callbacks.kernel.records.fit_records import Amounts, Gc, Record, Row, Run, Span, Summary
from perf_callbacks.kernel.records.metric_table import KEYS

FLUSH_SECONDS = 1.0
"""At the end of a step, the engine writes all finished steps if its last write is more than this many seconds ago."""

LATE_SECONDS = 3.0
"""If the last write is this many seconds ago, another thread writes the finished steps."""

MOST_MARKS = 16384
"""If the tape has more entries than this, the engine reads the tape before the current step ends.

If the tape has more than `2 * MOST_MARKS` entries, garbage collections are written to the journal at once.
"""

SEVERAL = 16
"""Within a step, the engine calls `relieve` after every 16 micro-batches."""

MOST_BATCHES = 256
"""If one step has more micro-batches than this, the engine adds up their amounts before the step ends."""


class Engine:
    """Turns the events of one fit into steps, metrics and journal records.

    A step lasts from one `end_step` to the next, without the time of evaluation and checkpointing.
    """

    def __init__(
        self,
        run: Run,
        emit: Callable[[Record], None],
        *,
        earlier: Amounts | None = None,
        device: DeviceTimeline | None = None,
        staged: bool = True,
        ranks: Ranks | None = None,
        devices: int = 1,
        data_parallel: int | None = None,
        ambiguous: Callable[[int], object] = lambda _: False,
        gc_timed: bool = True,
        observers: Observers | None = None,
    ) -> None:
        self._run, self._emit, self._ambiguous = run, emit, ambiguous
        self._earlier = earlier or Amounts()
        self._device = device
        data_parallel = data_parallel or run.world_size
        self._shown = KnownParts(
            gc_staged=gc_timed and device is None,
            gc_timed=gc_timed,
            waits_timed=staged and run.world_size > 1,
            staged=staged,
            processes=run.world_size,
            devices=devices * run.world_size / data_parallel,
        )
        self.waits_timed = self._shown.waits_timed
        """True if the training thread marks its waits in collectives on the tape."""
        self.tape = Tape(None if device is None else device.mark)
        """Tape on which the training thread writes its marks."""
        self.account = Account()
        self.open_spans: list[tuple[str, float]] = []
        """Kind and start time of each open span, such as an evaluation. The outermost span is first."""

        self.step = run.step
        """Number of optimizer steps that the trainer has counted so far."""
        self.excluded: str | None = "restart" if run.step else "first"
        """Reason why metrics leave out the current step. None means that metrics include the step."""
        self.batches: list[Batch] = []
        """Micro-batches of the current step so far."""
        self.relieve_at = SEVERAL
        """When the current step has this many micro-batches, `relieve` is called."""
        self.takes_batches = True
        """True if a caller may append to `batches` directly, because no span is open and the fit goes on."""
        self._observers = observers = observers or Observers()
        self._windows = WindowSharing(run, emit, observers, ranks, data_parallel=data_parallel, ambiguous=ambiguous)
        self._ledger = Ledger(self._shown, self._windows)
        self.step_reader = StepReader(
            self.tape,
            self._ledger,
            self._observers,
            device=device,
            tell=self._tell,
            interrupted=partial(self.exclude, "interrupted"),
        )
        """Moves finished steps from the tape to the ledger."""
        self.ended = self.step_reader.ended
        self.work = self.step_reader.work
        """Source of the FLOPs of steps. The method `use` sets another source."""
        self.flush_at = 0.0
        """The first step that ends after this time calls `flush`."""
        self._due = 0
        """Number of the step at whose end the engine calls `flush`, because a block is full or a window is complete."""
        self._look_at = 0
        """At the end of this step, the work model checks which parameters are trained."""
        self._collections = Pauses()

    def start(self, now: float) -> None:
        """Begin the fit. Metrics leave out the first step of the fit."""
        self.account.began = now
        self.flush_at = now + FLUSH_SECONDS
        self.tape.begin(now)
        self._emit(self._run)
        self._windows.exchange(self.step)
        self.plan()
        if self._device is not None:
            self._device.mark(Stage.OTHER)

    def use(self, work: WorkModel) -> None:
        """Use this work model for the FLOPs of the current step and of all later steps."""
        self.work = self.step_reader.work = work
        self.plan()

    def batch(self, batch: Batch) -> None:
        """Add a micro-batch to the current step. While a span is open, do nothing."""
        if not self.open_spans:
            self.batches.append(batch)
            if len(self.batches) >= self.relieve_at:
                self.relieve()

    def relieve(self) -> None:
        """Shorten the lists of batches and marks if they have grown long within a step."""
        if len(self.batches) > MOST_BATCHES:
            self.batches = [Batch(*together(self.batches), ())]
        self.relieve_at = len(self.batches) + SEVERAL
        if len(self.tape.pairs) > MOST_MARKS:
            self.step_reader.collect(show=False)

    def exclude(self, reason: str) -> None:
        """Exclude the current step from metrics. If the step already has a reason, keep that reason."""
        self.excluded = self.excluded or reason

    def pause(self, pause: Pause) -> None:
        """Handle a garbage collection. Python may interrupt any code to call `pause`."""
        self._collections.add(pause)
        if self.open_spans or not pause.here or len(self.tape.pairs) > 2 * MOST_MARKS:
            self._tell(pause, ("aside" if self.open_spans else "other") if pause.here else "elsewhere", None)
        else:
            self.tape.note(pause)

    def _tell(self, pause: Pause, stage: str, step: int | None) -> None:
        record = Gc(
            step=self.step + 1 if step is None else step,
            stage=stage,
            generation=pause.generation,
            start=pause.start - self.account.began,
            seconds=pause.seconds,
            collected=pause.collected,
            automatic=pause.automatic,
            ours=pause.ours,
        )
        self._emit(record)

    def begin_span(self, kind: str, now: float) -> None:
        """Begin a span, such as an evaluation. A span's time belongs to no step. The interrupted step is excluded."""
        if not self.open_spans:
            self.tape.write((BEGIN[Stage.ASIDE], now))
            self.tape.ignore()
        self.open_spans.append((kind, now))
        self.takes_batches = False
        self.plan()
        self.excluded = self.excluded or kind
        self.flush(now)  # within the span, so that its time is part of no step

    def end_span(self, now: float) -> None:
        """End the innermost span, if a span is open."""
        if not self.open_spans:
            return
        kind, start = self.open_spans.pop()
        if self.open_spans:
            return
        self.takes_batches = True
        self.plan()
        self.tape.listen()
        self.tape.write((BACK, now))
        self.account.span(kind, self.step, now - start)
        self._emit(Span(kind=kind, step=self.step, start=start - self.account.began, seconds=now - start))

    def end_step(self, step: int, now: float) -> None:
        """End the trainer's optimizer step `step`, and begin the next step."""
        while self.open_spans:
            self.end_span(now)
        self.ended.append((step, self.excluded, self.batches))
        self.tape.write((END, now))
        self.step = step
        self.excluded = None
        self.batches = []
        if self._device is not None:
            self.step_reader.collect()  # so that the device's events can be reused
        if step >= self._due or now > self.flush_at:
            self.flush(now)
        elif step >= self._look_at:
            self.work.look(step)
            if self.work.trainable_changed:
                self.step_reader.collect()
            self.plan()

    def plan(self) -> None:
        """Compute the next step at whose end the engine has more to do than to write a mark.

        While a span is open, or if there is a device timeline, the engine has more to do at the end of every step.
        """
        block = WATCHED_BLOCK if self._observers.watching else BLOCK
        self._due = min(self.step + block - self._ledger.kept - len(self.ended), self._windows.due or NEVER)
        self._look_at = self.work.look_after(self.step)
        self._observers.plan(0 if self.open_spans or self._device is not None else min(self._due, self._look_at))

    def write_late(self, now: float) -> None:
        """Write the finished steps if the last write is `LATE_SECONDS` ago. The watchdog's thread calls `write_late`.

        If the process is killed in a long step, the earlier steps are already on disk.
        """
        if now >= self.flush_at + LATE_SECONDS - FLUSH_SECONDS:
            self.step_reader.write_early(self._emit)

    def tell_tokens(self, with_tokens: Callable[[Batch], Batch]) -> None:
        """Count the tokens of earlier steps, because it is now known which tensor holds the token ids."""
        with self.step_reader.alone():
            self._read()
            self._ledger.tell_tokens(self.step_reader.tell_tokens(with_tokens))

    def flush(self, now: float) -> None:
        """Write the finished steps to the journal, and exchange windows with the other ranks."""
        self.flush_at, self.relieve_at = now + FLUSH_SECONDS, SEVERAL
        with self.step_reader.alone() as held:
            if not held:
                return
            self._read()
            self._windows.exchange(self.step)
            block = self._ledger.take_block()
            self.plan()
            if block is not None:
                self._emit(block)

    def row(self, step: int) -> dict[str, float]:
        """Return the metrics of the included steps since the previous row, or {} if no step is included."""
        with self.step_reader.alone():
            self._read()
            return self._logged(step, self._ledger.take_row(), "row")

    @property
    def why_empty(self) -> str | None:
        """Reasons why the most recent row left out steps, with the number of steps for each reason.

        None means that the row left out only the first step, and steps with FLOP counting or torch.profiler.
        """
        left_out = self._ledger.left_out
        return reasons(left_out) if {*left_out} - {*BEGINNING, COUNTED, PROFILED, RECOUNTED} else None

    def whole(self, step: int) -> dict[str, float]:
        """Return the metrics `perf/run/…` over all included steps, for the trainer's last log line."""
        with self.step_reader.alone():
            self._read()
            return self._logged(step, self._ledger.included(), "whole")

    def _logged(self, step: int, totals: Totals, kind: str) -> dict[str, float]:
        flops = self.work.metrics(totals)
        # A window covers about as many steps as a row, so a row gets the window's rates. The whole fit does not.
        window = self._windows.latest if kind == "row" else None
        shown = replace(self._shown, devices=None) if self._ambiguous(step) else self._shown
        metrics = ratios.metrics(totals, shown, window, flops)
        if metrics:
            metrics |= self._observers.metrics(kind)
            keys = KEYS[kind]
            metrics = {keys[name]: value for name, value in metrics.items()}
            self._emit(Row(step=step, metrics=metrics))
        return metrics

    def amounts(self) -> Amounts:
        """Return the samples and tokens of all attempts so far. A checkpoint carries these sums to the next attempt."""
        with self.step_reader.alone():
            self._read()
            _, _, total, _ = self._all()
            return total

    def productive_seconds(self) -> float:
        """Return the seconds of the steps so far, as `Account.productive` counts them."""
        with self.step_reader.alone():
            self._read()
            return self.account.productive(
                self._ledger.included(interim=True), self._ledger, len(self.step_reader.passed)
            )

    def _read(self) -> None:
        self.step_reader.collect()
        self._ledger.add_up()

    def _all(self) -> tuple[int, Amounts, Amounts, int]:
        """Return the number of steps of this attempt, their amounts, the amounts of all attempts, and the lost steps.

        A lost step has no times. A step doesn't count as lost if its times were not yet read from the device.
        """
        steps, samples, tokens, lost = self._ledger.all
        passed = [*self.step_reader.passed]
        samples = plus(samples, *[step.samples for step in passed])
        tokens = plus(tokens, *[step.tokens for step in passed])
        total = Amounts(samples=plus(self._earlier.samples, samples), tokens=plus(self._earlier.tokens, tokens))
        return steps + len(passed), Amounts(samples=samples, tokens=tokens), total, lost

    def summary(self, failure: str | None = None, now: float | None = None) -> Summary:
        """Return the summary of the fit so far. Without `now`, the summary has no wall time."""
        with self.step_reader.alone():
            self._read()
            all_steps, included = self._all(), self._ledger.included()
        return self._summary(all_steps, included, failure, now)

    def interim_summary(self, now: float) -> Summary | None:
        """Return the summary of the steps that were read so far. Any thread may call `interim_summary`.

        Return None if another thread is reading steps at the moment.
        """
        with self.step_reader.alone() as held:
            if not held:
                return None
            all_steps, included = self._all(), self._ledger.included(interim=True)
        return self._summary(all_steps, included, None, now)

    def _summary(
        self, all_steps: tuple[int, Amounts, Amounts, int], included: Totals, failure: str | None, now: float | None
    ) -> Summary:
        steps, done, total, lost = all_steps
        summary = Summary(
            run_id=self._run.run_id,
            attempt=self._run.attempt,
            step=self.step,
            steps=steps,
            lost_steps=lost,
            stage_seconds={name: included.seconds[stage] for stage, name in self._shown.stages(included.seconds)},
            other_seconds=dict(self.account.other_seconds),
            span_seconds=dict(self.account.span_seconds),
            span_counts=dict(self.account.span_counts),
            wall_seconds=self.account.parts(now, included, self._ledger),
            samples=done.samples,
            tokens=done.tokens,
            included_steps=included.steps,
            included_seconds=included.step_seconds,
            included_samples=included.samples,
            included_tokens=included.tokens,
            included_useful_tokens=included.useful_tokens,
            flops=self.work.summary(included, self._ledger.excluded),
            total_samples=total.samples,
            total_tokens=total.tokens,
            gc=self._collections.summary() if self._shown.gc_timed else None,
            failure=failure,
            **self._observers.summary(),
        )
        return replace(summary, findings=self._observers.findings(summary))

    def stop(self, now: float, failure: str | None = None) -> Summary:
        """End the fit, and write and return its summary. Steps whose times are still on the device count as lost."""
        while self.open_spans:
            self.end_span(now)
        self.takes_batches = False
        with self.step_reader.alone():
            self.step_reader.collect()
            self.step_reader.lose_outstanding()
            self.flush(now)
            self.tape.ignore()
        summary = self.summary(failure, now)
        for found in summary.findings:
            self._emit(found)
        self._emit(summary)
        return summary
