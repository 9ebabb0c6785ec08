"""The state machine behind every door: events in, records out.

Time is an argument. A door says what the training thread turns to (`mark`), what a micro-batch held (`batch`), that an
optimizer step is done (`end_step`), that evaluation or checkpointing begins and ends, and asks for a row.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import Any

from perf_callbacks.core import ratios
from perf_callbacks.core.batches import Batch, nothing, together
from perf_callbacks.core.gc_pauses import Pauses, collection
from perf_callbacks.core.ledger import MOST_UNTOLD, Ledger
from perf_callbacks.core.marks import BACK, BEGIN, END, Pause
from perf_callbacks.core.observer import Observers
from perf_callbacks.core.protocols import DeviceTimeline, Ranks
from perf_callbacks.core.records import Amounts, Gc, Record, Row, Run, Span, Summary
from perf_callbacks.core.shaped_work import ShapedWork
from perf_callbacks.core.stages import Stage
from perf_callbacks.core.steps import BLOCK, COUNTED, RECOUNTED, Shown, Step, Totals, plus
from perf_callbacks.core.tape import Past, Tape
from perf_callbacks.core.unknown_reasons import reasons
from perf_callbacks.core.window_parts import Parts
from perf_callbacks.core.window_sharing import Sharing

FLUSH_SECONDS = 1.0
"""A step that ends as late as this after the last block is written at once, with those before it."""

LATE_SECONDS = 3.0
"""If no block was written for as long as this, another thread writes the steps that wait."""

MOMENT_SECONDS = 0.05
"""How long the training thread may wait for that other thread."""

MOST_MARKS = 4096
"""What a step writes beyond this is read before it ends; collections beyond it are told of at once."""

LOOK_STEPS = 50
"""A count is used for no more steps than this without a look at which parameters are trained."""

MOST_BATCHES = 256
"""More batches than this, in one step, are added up before it ends."""

_OTHER = Stage.OTHER
_BEGINNING = ("first", "restart")


class Engine:
    """Turns the events of one fit into steps, rows and records.

    A step lasts from the end of one optimizer step to the end of the next, without evaluation and checkpointing.
    """

    def __init__(
        self,
        run: Run,
        emit: Callable[[Record], None],
        *,
        earlier: Amounts | None = None,
        device: DeviceTimeline | None = None,
        ranks: Ranks | None = None,
        devices: int = 1,
        data_parallel: int | None = None,
        ambiguous: bool = False,
        staged: bool = True,
        gc_timed: bool = True,
        work: ShapedWork | None = None,
        observers: Observers | None = None,
    ) -> None:
        self._run = run
        self._emit = emit
        self._earlier = earlier or Amounts()
        self._device = device
        self._work = work or ShapedWork()
        data_parallel = data_parallel or run.world_size
        self._shown = Shown(
            staged=staged,
            gc_staged=gc_timed and device is None,
            gc_timed=gc_timed,
            processes=run.world_size,
            devices=None if ambiguous else devices * run.world_size / data_parallel,
        )
        self.tape = Tape(None if device is None else device.mark)
        """Where the training thread writes what it turns to."""
        self._began = 0.0
        self._aside: list[tuple[str, float]] = []

        self.step = run.step
        """The trainer's count of optimizer steps."""
        self.longest_step = 0.0
        """Seconds of the longest step so far, without the first, in which things are made and compiled."""
        self._excluded: str | None = "restart" if run.step else "first"
        self._batches: list[Batch] = []
        self._batch = Batch(None, None, None, ())
        self._with_tokens: Callable[[Batch], Batch] | None = None
        self._untold: dict[int, list[Batch]] = {}  # first steps without tokens

        self._waiting: deque[tuple[int, str | None, list[Batch]]] = deque()  # for being read
        self._passed: deque[Step] = deque()  # for the device
        self._unseen: deque[tuple[list[Step], list[Gc]]] = deque()  # by trials
        self._books = RLock()  # held by who reads the tape or the ledger; marks are written without it
        self._reading = False
        self._overdue = False
        """The device is to be asked for its times before the step ends."""
        parts = Parts(step=run.step, rank=run.rank, world_size=run.world_size, data_parallel=data_parallel)
        parts.ambiguous = ambiguous
        self._ledger = Ledger(self._shown, parts)
        self._sharing = Sharing(ranks, parts, self._ledger, emit, observers or Observers(), alone=run.world_size == 1)
        self._flushed_at = 0.0
        self._unlooked = 0
        self._spans: dict[str, float] = {}
        self._collections = Pauses()

    def start(self, now: float) -> None:
        """Training begins. The step that follows is in no row."""
        self._began = self._flushed_at = now
        self.tape.begin(now)
        self._emit(self._run)
        self._sharing.do(self.step)
        if self._device is not None:
            self._device.mark(_OTHER)

    def batch(self, batch: Batch) -> None:
        """A micro-batch goes into the current step."""
        if not self._aside:
            self._batches.append(batch)
            if len(self._batches) > MOST_BATCHES:
                self._batches = [Batch(*together(self._batches), ())]
            if self._overdue or len(self.tape.pairs) > MOST_MARKS:
                self.collect(show=False)

    @property
    def batches(self) -> list[Batch]:
        """What went into the current step so far."""
        return self._batches

    def exclude(self, reason: str) -> None:
        """The current step is to be in no row."""
        self._excluded = self._excluded or reason

    def pause(self, pause: Pause) -> None:
        """A garbage collection. It may be in the midst of anything: one that is part of a step is told of later."""
        self._collections.add(pause)
        if self._aside or not pause.here or len(self.tape.pairs) > 2 * MOST_MARKS:
            self._tell(pause, ("aside" if self._aside else "other") if pause.here else "elsewhere", self.step + 1)
        else:
            self.tape.note(pause)

    def _tell(self, pause: Pause, stage: str, step: int) -> Gc:
        record = collection(pause, stage, step, self._began)
        self._emit(record)
        return record

    def begin_span(self, kind: str, now: float) -> None:
        """Time begins that belongs to no step. Spans nest; the step in which one falls is in no row."""
        if not self._aside:
            self.tape.write((BEGIN[Stage.ASIDE], now))
            self.tape.ignore()
        self._aside.append((kind, now))
        self._excluded = self._excluded or kind
        self.flush(now)  # in here it is part of no step

    def end_span(self, now: float) -> None:
        """The innermost span is over; without one, nothing happens."""
        if not self._aside:
            return
        kind, start = self._aside.pop()
        if self._aside:
            return
        self.tape.listen()
        self.tape.write((BACK, now))
        self._spans[kind] = self._spans.get(kind, 0.0) + now - start
        self._emit(Span(kind=kind, step=self.step, start=start - self._began, seconds=now - start))

    def end_step(self, step: int, now: float) -> None:
        """An optimizer step is done, the trainer's `step`-th. The next one begins."""
        while self._aside:
            self.end_span(now)
        self._waiting.append((step, self._excluded, self._batches))
        self.tape.write((END, now))
        self.step = step
        self._excluded = None
        self._batches = []
        if self._device is not None:
            self.collect()  # its events are needed again
        read = len(self._ledger.block)
        full = (read if self._device is not None else read + len(self._waiting)) >= BLOCK
        if full or step == self._sharing.due or now - self._flushed_at > FLUSH_SECONDS:
            self.flush(now)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Keep other threads from the books. Gives False where another one has them for longer than a moment."""
        held = self._books.acquire(timeout=MOMENT_SECONDS)
        try:
            yield held
        finally:
            if held:
                self._books.release()

    def collect(self, *, show: bool = True) -> bool:
        """Take over the steps that are finished. True: none is outstanding.

        They are not shown to trials by a loader's thread, nor in the middle of a step.
        """
        if not self._books.acquire(timeout=MOMENT_SECONDS):
            return False
        try:
            if self._reading:  # a signal or a finalizer may come in the midst of it
                return False
            self._reading = True
            self._overdue = False
            try:
                self._collect()
            finally:
                self._reading = False
        finally:
            self._books.release()
        while show and self._unseen:
            self._sharing.see(*self._unseen.popleft())
        return not self._passed

    def write_late(self, now: float) -> None:
        """Write the steps that are finished, if none has ended for a while. Called in another thread than training.

        A step may take minutes, and the process may be killed in it. Nothing is taken over here: the tape is read from
        a copy, and what a step's work was stays unknown where only the training thread can tell. Nor is a device asked,
        which might spoil the capture of a graph in the training thread, and may hang with it: that thread asks it with
        the next micro-batch, and what it heard is written here a moment later.
        """
        if now - self._flushed_at < LATE_SECONDS or not self._books.acquire(blocking=False):
            return
        try:
            if not self._reading:
                self._overdue = bool(self._passed)
                past = self.tape.peek() if self._device is None else []
                late = [self._seen(past[place], *self._waiting[place]) for place in range(len(past))]
                block = self._ledger.early_block(late)
                if block is not None:
                    self._emit(block)
        finally:
            self._books.release()

    def _seen(self, past: Past, number: int, excluded: str | None, batches: list[Batch]) -> Step:
        """A step, by what can be told of it without changing anything."""
        samples = plus(*[batch.samples for batch in batches]) if batches else nothing(self._batch)[0]
        tokens = plus(*[batch.tokens for batch in batches]) if batches else nothing(self._batch)[1]
        return Step(number, excluded, samples, tokens, None, None, 0.0, 0.0, past.seconds)

    def _collect(self) -> None:
        done, told = self.tape.read()
        pauses = [
            self._tell(
                pause,
                "other" if stage is Stage.UNDECIDED else stage.name.lower(),
                self._waiting[place][0] if place < len(self._waiting) else self.step + 1,
            )
            for pause, stage, place in told
        ]
        if done:
            self._look_after(len(done))
        finished = [self._finish(past) for past in done]
        if done:
            self._work.settle()
        if self._device is not None:
            self._passed += finished
            finished = [self._timed(self._passed.popleft(), seconds) for seconds in self._device.ready()]
        times = [sum(step.seconds) for step in finished if step.seconds and step.excluded not in _BEGINNING]
        self.longest_step = max(self.longest_step, *times) if times else self.longest_step
        self._ledger.enter(finished)
        self._unseen.append((finished, pauses))

    def _look_after(self, steps: int) -> None:
        """See which parameters are trained: with a device, whose steps are read one by one, only now and then."""
        self._unlooked += steps
        if self._device is None or self._unlooked >= LOOK_STEPS:
            self._unlooked = 0
            self._work.look()

    def _finish(self, past: Past) -> Step:
        number, excluded, batches = self._waiting.popleft()
        paused = (sum(past.pauses), max(past.pauses)) if past.pauses else (0.0, 0.0)
        effort = self._work.of([batch.shape for batch in batches], past.calls, number) if batches else None
        samples, tokens, useful_tokens = self._through(batches)
        if tokens is None and batches:
            tokens = self._find_tokens(number, batches)
        return Step(number, excluded, samples, tokens, useful_tokens, effort, *paused, past.seconds)

    def _find_tokens(self, number: int, batches: list[Batch]) -> int | None:
        """The tokens of batches that were read before it was known which tensor holds them."""
        if self._with_tokens is not None:
            return together([self._with_tokens(batch) for batch in batches])[1]
        if len(self._untold) < MOST_UNTOLD:
            self._untold[number] = batches
        return None

    def tell_tokens(self, with_tokens: Callable[[Batch], Batch]) -> None:
        """Add the tokens of earlier steps: it is known now which tensor holds the ids."""
        with self._alone():
            self.collect()
            self._with_tokens = with_tokens
            untold, self._untold = self._untold, {}
            found = {number: self._find_tokens(number, batches) for number, batches in untold.items()}
            tokens = {number: amount for number, amount in found.items() if amount is not None}
            self._passed = deque([step._replace(tokens=tokens.pop(step.number, step.tokens)) for step in self._passed])
            self._ledger.tell_tokens(tokens)

    def _timed(self, step: Step, seconds: tuple[float, ...] | None) -> Step:
        """A step as the device saw it."""
        return step._replace(seconds=seconds, excluded=step.excluded if seconds else "lost")

    def _through(self, batches: list[Batch]) -> tuple[int | None, int | None, Any]:
        """What a step went through. Without a batch: nothing, of what batches have told so far."""
        if not batches:
            return nothing(self._batch)
        self._batch = batches[0]
        return together(batches)

    def flush(self, now: float) -> None:
        """Hand out the finished steps."""
        self._flushed_at = now
        with self._alone() as held:
            if not held:
                return
            self.collect()
            self._sharing.do(self.step)
            block = self._ledger.take_block()
            if block is not None:
                self._emit(block)

    def row(self, step: int) -> dict[str, float]:
        """Metrics of the included steps since the last row; empty where there are none."""
        with self._alone():
            self.collect()
            return self._logged(step, self._ledger.take_row())

    @property
    def why_empty(self) -> str | None:
        """Why the last row has no step, where that may happen again; None: it has some, or the fit has just begun."""
        left_out = self._ledger.left_out
        return reasons(left_out) if {*left_out} - {"first", "restart", COUNTED, RECOUNTED} else None

    def whole(self, step: int) -> dict[str, float]:
        """Metrics of all included steps, for the line in which a trainer sums up a run."""
        with self._alone():
            self.collect()
            return self._logged(step, self._ledger.included())

    def _logged(self, step: int, totals: Totals) -> dict[str, float]:
        self._work.judge(totals.effort, totals.effort_seconds)
        rating = None if self._work.varies else self._work.rating
        metrics = ratios.metrics(totals, self._shown, self._sharing.latest, rating)
        if metrics:
            self._emit(Row(step=step, metrics=metrics))
        return metrics

    def amounts(self) -> Amounts:
        """What all attempts so far went through; a checkpoint carries it to the next one."""
        _, done, _ = self._all()
        return Amounts(
            samples=plus(self._earlier.samples, done.samples), tokens=plus(self._earlier.tokens, done.tokens)
        )

    def _all(self) -> tuple[int, Amounts, int]:
        """Steps of this attempt, what went through them, and how many have no time. Some may still be on the device."""
        with self._alone():
            self.collect()
            steps, samples, tokens, lost = self._ledger.all()
        samples = plus(samples, *[step.samples for step in self._passed])
        tokens = plus(tokens, *[step.tokens for step in self._passed])
        return steps + len(self._passed), Amounts(samples=samples, tokens=tokens), lost

    def summary(self, failure: str | None = None, proofs: Mapping[str, str] | None = None) -> Summary:
        """The fit so far."""
        with self._alone():
            total, (steps, done, lost) = self.amounts(), self._all()
            included = self._ledger.included()
        worked = included.effort_steps > 0 and not self._work.varies
        return Summary(
            run_id=self._run.run_id,
            attempt=self._run.attempt,
            step=self.step,
            steps=steps,
            included_steps=included.steps,
            lost_steps=lost,
            included_seconds=included.step_seconds,
            stage_seconds={name: included.seconds[stage] for stage, name in self._shown.stages(included.seconds)},
            span_seconds=dict(self._spans),
            samples=done.samples,
            tokens=done.tokens,
            included_samples=included.samples,
            included_tokens=included.tokens,
            included_useful_tokens=included.useful_tokens,
            model_flops=included.effort.model_flops if worked else None,
            hardware_flops=included.effort.hardware_flops if worked else None,
            flops_seconds=included.effort_seconds if worked else None,
            flops_steps=included.effort_steps if worked else 0,
            **self._work.summary(included.steps, included.effort_steps, self._ledger.excluded),
            total_samples=total.samples,
            total_tokens=total.tokens,
            **self._collections.summary(timed=self._shown.gc_timed),
            proofs=dict(proofs or {}),
            failure=failure,
        )

    def stop(self, now: float, failure: str | None = None, proofs: Mapping[str, str] | None = None) -> Summary:
        """Training is over. Steps that the device still owes are lost."""
        while self._aside:
            self.end_span(now)
        with self._alone():
            self.collect()
            self._ledger.enter([self._timed(step, None) for step in self._passed])
            self._passed.clear()
            self.flush(now)
            self.tape.ignore()
        summary = self.summary(failure, proofs)
        self._emit(summary)
        return summary
