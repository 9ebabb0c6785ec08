"""The state machine behind every door: events in, records out.

Time is an argument. A door says what the training thread turns to (`mark`), what a micro-batch held (`batch`), that an
optimizer step is done (`end_step`), that evaluation or checkpointing begins and ends, and asks for a row.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perf_callbacks.core import ratios
from perf_callbacks.core.batches import Batch, nothing, together
from perf_callbacks.core.ledger import Ledger
from perf_callbacks.core.parts import Parts
from perf_callbacks.core.pauses import Pauses
from perf_callbacks.core.records import Amounts, Gc, Record, Row, Run, Span, Summary
from perf_callbacks.core.sources import DeviceTimeline, Ranks
from perf_callbacks.core.stages import Stage
from perf_callbacks.core.steps import BLOCK, Shown, Step, Totals, plus
from perf_callbacks.core.tape import Tape

FLUSH_SECONDS = 10.0
"""Steps that are longer than this are written one by one."""

MOST_MARKS = 4096
"""A step that writes more than this is read in parts."""

# Looking a member up in its class costs as much as the rest of `mark`.
_ASIDE, _GC, _OTHER = Stage.ASIDE, Stage.GC, Stage.OTHER


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
        staged: bool = True,
        gc_timed: bool = True,
    ) -> None:
        self._run = run
        self._emit = emit
        self._earlier = earlier or Amounts()
        self._device = device
        self._ranks = ranks
        data_parallel = data_parallel or run.world_size
        self._shown = Shown(
            staged=staged,
            gc_staged=gc_timed and device is None,
            gc_timed=gc_timed,
            processes=run.world_size,
            devices=devices * run.world_size / data_parallel,
        )
        self._stage = _OTHER
        self._began = 0.0
        self._tape = Tape()
        self._write = self._tape.extend
        self._aside: list[tuple[str, float, Stage]] = []

        self.step = run.step
        """The trainer's count of optimizer steps."""
        self._excluded: str | None = "restart" if run.step else "first"
        self._batches: list[Batch] = []
        self._batch = Batch(None, None, None, ())
        self._pauses: list[float] = []

        self._waiting: deque[tuple[int, str | None, list[Batch], Sequence[float]]] = deque()
        self._parts = Parts(step=run.step, rank=run.rank, world_size=run.world_size, data_parallel=data_parallel)
        self._ledger = Ledger(self._shown, self._parts)
        self._window_end: int | None = None
        self._flushed_at = 0.0
        self._spans: dict[str, float] = {}
        self._collections = Pauses()

    def start(self, now: float) -> None:
        """Training begins. The step that follows is in no row."""
        self._began = self._flushed_at = now
        self._tape.begin(now)
        self._emit(self._run)
        if self._ranks is not None:
            self._exchange(self._ranks)
        if self._device is not None:
            self._device.mark(_OTHER)

    def turner(self, clock: Callable[[], float], fail: Callable[[Exception], object]) -> Callable[[Stage], Stage]:
        """Make the function by which the training thread says what it turns to; that answers what it was in before.

        It is called many times in a step, so it is one call deep: it reads the clock and fails open by itself.
        """
        write, device = self._write, self._device

        def turn(stage: Stage) -> Stage:
            try:
                before = self._stage
                if before is _ASIDE:
                    return _OTHER
                if stage is not before:
                    self._stage = stage
                    if device is None:
                        write((stage, clock()))
                    else:
                        device.mark(stage)
            except Exception as error:  # noqa: BLE001 an observer never ends the run
                fail(error)
                return stage
            return before

        return turn

    def _turn(self, stage: Stage, now: float) -> None:
        self._stage = stage
        if self._device is None:
            self._write((stage, now))
        else:
            self._device.mark(stage)

    def batch(self, batch: Batch) -> None:
        """A micro-batch goes into the current step."""
        if self._stage is not _ASIDE:
            self._batches.append(batch)
            if len(self._tape) > MOST_MARKS:
                self.collect()

    def pause(
        self, generation: int, start: float, seconds: float, collected: int, *, automatic: bool, here: bool
    ) -> None:
        """A garbage collection, in the training thread (`here`) or another."""
        inside = here and self._stage is not _ASIDE
        stage = "other" if self._stage is Stage.UNDECIDED else self._stage.name.lower()
        self._emit(
            Gc(
                step=self.step + 1,
                stage=stage if here else "elsewhere",
                generation=generation,
                start=start - self._began,
                seconds=seconds,
                collected=collected,
                automatic=automatic,
            )
        )
        self._collections.add(generation, seconds)
        if inside:
            self._pauses.append(seconds)
        if inside and self._device is None:
            self._write((_GC, (start, seconds)))

    def begin_span(self, kind: str, now: float) -> None:
        """Time begins that belongs to no step. Spans nest; the step in which one falls is in no row."""
        before = self._stage
        self._aside.append((kind, now, before))
        if before is not _ASIDE:
            self._turn(_ASIDE, now)
        self._excluded = self._excluded or kind
        self.flush(now)  # in here it is part of no step

    def end_span(self, now: float) -> None:
        """The innermost span is over; without one, nothing happens."""
        if not self._aside:
            return
        kind, start, before = self._aside.pop()
        if self._aside:
            return
        self._turn(before, now)
        self._spans[kind] = self._spans.get(kind, 0.0) + now - start
        self._emit(Span(kind=kind, step=self.step, start=start - self._began, seconds=now - start))

    def end_step(self, step: int, now: float) -> None:
        """An optimizer step is done, the trainer's `step`-th. The next one begins."""
        while self._aside:
            self.end_span(now)
        self._stage = _OTHER
        self._waiting.append((step, self._excluded, self._batches, self._pauses or ()))
        self.step = step
        self._excluded = None
        self._batches = []
        if self._pauses:
            self._pauses = []
        if self._device is None:
            self._write((None, now))
            full = len(self._waiting) >= BLOCK
        else:
            self._device.cut()
            self.collect()  # its events are needed again
            full = self._ledger.full
        if full or step == self._window_end or now - self._flushed_at > FLUSH_SECONDS:
            self.flush(now)

    def collect(self) -> bool:
        """Take over the steps that are finished; whether none is outstanding."""
        finished: Iterable[tuple[float, ...] | None]
        finished = self._tape.read() if self._device is None else self._device.ready()
        self._ledger.enter([self._finish(seconds) for seconds in finished])
        return not self._waiting

    def _finish(self, seconds: tuple[float, ...] | None) -> Step:
        number, excluded, batches, pauses = self._waiting.popleft()
        paused = (sum(pauses), max(pauses)) if pauses else (0.0, 0.0)
        return Step(number, excluded if seconds else "lost", *self._through(batches), *paused, seconds)

    def _through(self, batches: list[Batch]) -> tuple[int | None, int | None, Any]:
        """What a step went through. Without a batch: nothing, of what batches have told so far."""
        if not batches:
            return nothing(self._batch)
        self._batch = batches[0]
        return together(batches)

    def flush(self, now: float) -> None:
        """Hand out the finished steps."""
        self._flushed_at = now
        self.collect()
        if self._ranks is not None:
            self._exchange(self._ranks)
        block = self._ledger.take_block()
        if block is not None:
            self._emit(block)

    def _exchange(self, ranks: Ranks) -> None:
        for part in self._ledger.take_parts():
            ranks.offer(part)
        for window in ranks.take():
            self._emit(window)
        length = self._parts.length = ranks.window
        self._window_end = None if length is None else (self.step // length + 1) * length

    def row(self, step: int) -> dict[str, float]:
        """Metrics of the included steps since the last row; empty where there are none."""
        self.collect()
        return self._logged(step, self._ledger.take_row())

    def whole(self, step: int) -> dict[str, float]:
        """Metrics of all included steps, for the line in which a trainer sums up a run."""
        self.collect()
        return self._logged(step, self._ledger.included())

    def _logged(self, step: int, totals: Totals) -> dict[str, float]:
        window = self._ranks.latest if self._ranks is not None else None
        metrics = ratios.metrics(totals, self._shown, window)
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
        self.collect()
        steps, samples, tokens, lost = self._ledger.all()
        owed = [self._through(batches) for _, _, batches, _ in self._waiting]
        samples = plus(samples, *[amounts[0] for amounts in owed])
        tokens = plus(tokens, *[amounts[1] for amounts in owed])
        return steps + len(owed), Amounts(samples=samples, tokens=tokens), lost

    def summary(self, failure: str | None = None) -> Summary:
        """The fit so far."""
        total = self.amounts()
        steps, done, lost = self._all()
        included = self._ledger.included()
        gc_timed = self._shown.gc_timed
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
            total_samples=total.samples,
            total_tokens=total.tokens,
            gc_collections=tuple(self._collections.collections) if gc_timed else None,
            gc_seconds=self._collections.seconds if gc_timed else None,
            gc_longest=self._collections.longest if gc_timed else None,
            failure=failure,
        )

    def stop(self, now: float, failure: str | None = None) -> Summary:
        """Training is over. Steps that the device still owes are lost."""
        while self._aside:
            self.end_span(now)
        self.collect()
        self._ledger.enter([self._finish(None) for _ in range(len(self._waiting))])
        self.flush(now)
        self._stage = _ASIDE  # what is said from now on counts for nothing
        summary = self.summary(failure)
        self._emit(summary)
        return summary
