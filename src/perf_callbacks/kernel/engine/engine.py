"""Turns the events of an integration into steps, metrics and records. Methods get the time as an argument."""

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
"""The end of a step writes all finished steps if the last write is longer ago."""

LATE_SECONDS = 3.0
"""If the last write is this long ago, the watchdog's thread writes the finished steps."""

MOST_MARKS = 16384
"""A longer tape is read before the step ends. With twice as many, garbage collections are written at once."""

SEVERAL = 16
"""Within a step, the engine calls `relieve` after every 16 micro-batches."""

MOST_BATCHES = 256
"""The amounts of more micro-batches in one step are added up before it ends."""


class Engine:
    """Measures one fit. A step lasts from one `end_step` to the next, without evaluation and checkpointing."""

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
        self.tape = Tape(None if device is None else device.mark)
        self.account = Account()
        self.open_spans: list[tuple[str, float]] = []
        """Kind and start of each open span, such as an evaluation. The outermost is first."""

        self.step = run.step
        self.excluded: str | None = "restart" if run.step else "first"
        """Why metrics leave out the current step. None: they include it."""
        self.batches: list[Batch] = []
        self.relieve_at = SEVERAL
        self.takes_batches = True
        """True if a caller may append to `batches` directly: no span is open and the fit goes on."""
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
        self.ended = self.step_reader.ended
        self.work = self.step_reader.work
        self.flush_at = 0.0
        """The first step that ends after this time calls `flush`."""
        self._due = 0
        """The step at whose end a block is full or a window is complete."""
        self._look_at = 0
        self._collections = Pauses()

    def start(self, now: float) -> None:
        self.account.began = now
        self.flush_at = now + FLUSH_SECONDS
        self.tape.begin(now)
        self._emit(self._run)
        self._windows.exchange(self.step)
        self.plan()
        if self._device is not None:
            self._device.mark(Stage.OTHER)

    def use(self, work: WorkModel) -> None:
        self.work = self.step_reader.work = work
        self.plan()

    def batch(self, batch: Batch) -> None:
        if not self.open_spans:
            self.batches.append(batch)
            if len(self.batches) >= self.relieve_at:
                self.relieve()

    def relieve(self) -> None:
        if len(self.batches) > MOST_BATCHES:
            self.batches = [Batch(*together(self.batches), ())]
        self.relieve_at = len(self.batches) + SEVERAL
        if len(self.tape.pairs) > MOST_MARKS:
            self.step_reader.collect(show=False)

    def exclude(self, reason: str) -> None:
        """Exclude the current step from metrics. Its first reason stays."""
        self.excluded = self.excluded or reason

    def pause(self, pause: Pause) -> None:
        """Python may interrupt any code to call this."""
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
        """A span's time belongs to no step. The interrupted step is excluded."""
        if not self.open_spans:
            self.tape.write((BEGIN[Stage.ASIDE], now))
            self.tape.ignore()
        self.open_spans.append((kind, now))
        self.takes_batches = False
        self.plan()
        self.excluded = self.excluded or kind
        self.flush(now)  # within the span, so that its time is part of no step

    def end_span(self, now: float) -> None:
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
        """Compute the next step with more to do than a mark: all of them in a span, or with a device timeline."""
        block = WATCHED_BLOCK if self._observers.watching else BLOCK
        self._due = min(self.step + block - self._ledger.kept - len(self.ended), self._windows.due or NEVER)
        self._look_at = self.work.look_after(self.step)
        self._observers.set_due(0 if self.open_spans or self._device is not None else min(self._due, self._look_at))

    def write_late(self, now: float) -> None:
        """Write the finished steps from the watchdog's thread: the process may be killed in a long step."""
        if now >= self.flush_at + LATE_SECONDS - FLUSH_SECONDS:
            self.step_reader.write_early(self._emit)

    def tell_tokens(self, with_tokens: Callable[[Batch], Batch]) -> None:
        """Count the tokens of earlier steps, because it is now known which tensor holds the token ids."""
        with self.step_reader.alone():
            self._read()
            self._ledger.tell_tokens(self.step_reader.tell_tokens(with_tokens))

    def flush(self, now: float) -> None:
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
        """Why, and how often, the most recent row left out more than the first, counted and profiled steps."""
        left_out = self._ledger.left_out
        return reasons(left_out) if {*left_out} - {*BEGINNING, COUNTED, PROFILED, RECOUNTED} else None

    def whole(self, step: int) -> dict[str, float]:
        """Return the metrics `perf/run/…`, for the trainer's last log line."""
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
        """Samples and tokens of all attempts so far. A checkpoint carries these sums to the next attempt."""
        with self.step_reader.alone():
            self._read()
            _, _, total, _ = self._all()
            return total

    def productive_seconds(self) -> float:
        with self.step_reader.alone():
            self._read()
            return self.account.productive(
                self._ledger.included(interim=True), self._ledger, len(self.step_reader.passed)
            )

    def _read(self) -> None:
        self.step_reader.collect()
        self._ledger.add_up()

    def _all(self) -> tuple[int, Amounts, Amounts, int]:
        """Return this attempt's steps and amounts, the amounts of all attempts, and steps whose times were lost."""
        steps, samples, tokens, lost = self._ledger.all
        passed = [*self.step_reader.passed]
        samples = plus(samples, *[step.samples for step in passed])
        tokens = plus(tokens, *[step.tokens for step in passed])
        total = Amounts(samples=plus(self._earlier.samples, samples), tokens=plus(self._earlier.tokens, tokens))
        return steps + len(passed), Amounts(samples=samples, tokens=tokens), total, lost

    def summary(self, failure: str | None = None, now: float | None = None) -> Summary:
        """Without `now`, the summary has no wall time."""
        with self.step_reader.alone():
            self._read()
            all_steps, included = self._all(), self._ledger.included()
        return self._summary(all_steps, included, failure, now)

    def interim_summary(self, now: float) -> Summary | None:
        """Sum up the steps that were read so far, on any thread. None: another thread is reading steps."""
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
        """End the fit. Steps whose times are still on the device count as lost."""
        while self.open_spans:
            self.end_span(now)
        self.takes_batches = False
        with self.step_reader.alone():
            self.step_reader.collect()
            self.step_reader.lose_outstanding()
            self.flush(now)
            self.tape.ignore()
        summary = self.summary(failure, now)
        for finding in summary.findings:
            self._emit(finding)
        self._emit(summary)
        return summary
