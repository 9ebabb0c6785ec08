"""Search for stragglers in a fit. Each rank computes signals, and rank 0 compares all ranks in a side thread."""

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from perf_callbacks.kernel.clock import monotonic, sleep
from perf_callbacks.kernel.engine.observer import Observer, Signals as StepSignals
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.steps import Columns
from perf_callbacks.kernel.engine.windows import GatheredWindow
from perf_callbacks.kernel.failures import guard, logs
from perf_callbacks.kernel.fit.meshes import coordinates
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process.waits import WAITS, in_compiled_code
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.fit_records import Record, Steps
from perf_callbacks.kernel.records.summary_parts import StragglerSummary
from perf_callbacks.ranks import exchange
from perf_callbacks.ranks.exchange import Exchange
from perf_callbacks.ranks.leader import GilYield
from perf_callbacks.stragglers import gradient_moments, signals
from perf_callbacks.stragglers.gradient_moments import GradientMoments
from perf_callbacks.stragglers.local_times import LocalTimes
from perf_callbacks.stragglers.peers import Signals
from perf_callbacks.stragglers.search import Stragglers
from perf_callbacks.stragglers.slow_sets import SlowRank
from perf_callbacks.stragglers.text import REMEDIES, SYNCED_REMEDIES, slow_rank
from perf_callbacks.stragglers.work_kinds import KIND, kind

LAST_SECONDS = 0.5
"""Longest wait of a fit's end for the search: for the other ranks' last signals, or a single process's comparison."""

ALONE_STEPS, FEWEST_STEPS = 50, 10
"""New steps after which a single process compares its steps during training; and the fewest at the end of a fit."""

NO_MORE = "perf_callbacks: the search for slow ranks has ended, training goes on: %s"

MOST_TOLD = 8
"""Most warnings about slow ranks in the log, and stragglers with lost seconds in a summary."""


def begin(recorder: Recorder, context: FitContext) -> Observer | None:
    """Rank 0's setting holds for all ranks. A single process needs timed stages, to find causes."""
    if recorder.run.world_size == 1:
        if recorder.config.stragglers == "off" or recorder.run.unstaged is not None:
            return None
        alone = SingleWatch(recorder)
        WATCHDOG.watch(alone)
        return alone
    ranks = exchange.exchange_of(recorder)
    if ranks is None or (ranks.job_settings is not None and not ranks.signals):
        return None
    with guard(logs(log.warning, NO_MORE)):
        return RanksWatch(recorder, ranks, context)
    return None


class _StragglerWatch(Observer):
    """Stragglers so far. One thread compares ranks, another reads the results without a lock."""

    def __init__(self, recorder: Recorder, *, model_compared: bool = True, waits_timed: bool = True) -> None:
        self._recorder = recorder
        self._model_compared, self._waits_timed = model_compared, waits_timed
        self._remedies = SYNCED_REMEDIES if recorder.config.gc == "sync" else REMEDIES
        self._stragglers = Stragglers()
        self._warned: set[int] = set()
        self._warnings = 0
        self._lost, self._told = 0.0, 0.0
        self._summary: StragglerSummary | None = None
        self.waited_seconds = self.backward_seconds = 0.0
        """Waits for other ranks and reductions of gradients within backwards; and these backwards."""
        self.timed_steps = self.untimed_steps = 0
        """This rank's measured steps with, and without, a local time."""

    def analyse(
        self,
        numbers: Sequence[int],
        ranks: Mapping[int, Signals],
        roles: Mapping[int, Mapping[str, int]] | None = None,
    ) -> None:
        """Compare ranks, write a record of each straggler, and warn of slow ranks."""
        stragglers = self._stragglers
        for straggler in stragglers.window(numbers, ranks, roles, GilYield()):
            self._recorder.write(straggler)
        worst = stragglers.costliest(MOST_TOLD)
        several = stragglers.slowdown is not None
        self._summary = StragglerSummary(
            steps=stragglers.steps,
            seconds=stragglers.seconds,
            model_compared=self._model_compared,
            seconds_by_cause=stragglers.causes,
            costliest=tuple(
                [(straggler.rank, straggler.cause, straggler.seconds_lost, straggler.steps) for straggler in worst]
            ),
            costliest_ranks=tuple([straggler.ranks for straggler in worst])
            if any(straggler.ranks for straggler in worst)
            else (),
            uneven_batches_seconds=stragglers.uneven_batches_seconds if several else None,
            uneven_stages_seconds=stragglers.uneven_stages_seconds if several else None,
            chance_seconds=stragglers.chance_seconds if several else None,
            slowdown=stragglers.slowdown,
            other_work=stragglers.other_work,
            undecided_steps=stragglers.undecided_steps,
        )
        self._lost = sum(stragglers.causes.values())
        for slow in stragglers.slow:
            if not self._warned.issuperset(slow.ranks or (slow.rank,)) and self._warnings < MOST_TOLD:
                self._warned.update(slow.ranks or (slow.rank,))
                self._warnings += 1
                text = slow_rank(slow, self._remedies)
                log.warning("perf_callbacks: %s", text)
                self._report(slow, text)

    def _report(self, slow: SlowRank, text: str) -> None:
        lost = [
            straggler.seconds_lost for straggler in self._stragglers.costliest(MOST_TOLD) if straggler.rank == slow.rank
        ]
        details = {
            "text": text,
            "rank": slow.rank,
            "ranks": slow.ranks or (slow.rank,),
            "cause": next(iter(slow.causes), None),
            "share": slow.share,
            "seconds_lost": lost[0] if lost else None,
            "steps": slow.steps,
            "step": slow.step,
        }
        self._recorder.observers.happened("straggler", details)

    @override
    def summary(self) -> dict[str, StragglerSummary]:
        waiting = self.waited_seconds / self.backward_seconds if self.backward_seconds else None
        comparable = self.timed_steps > 0 or self.untimed_steps < FEWEST_STEPS
        summary = replace(self._summary or StragglerSummary(), waits_timed=self._waits_timed)
        return {"stragglers": replace(summary, backward_waiting=waiting, comparable=comparable)}

    @override
    def metrics(self, kind: str) -> dict[str, float]:
        """Return the seconds lost since the previous row (kind "row"), or in the whole fit."""
        if self._summary is None or self._recorder.run.world_size == 1:
            return {}
        lost, before = self._lost, self._told if kind == "row" else 0.0
        if kind == "row":
            self._told = lost
        return {"straggler_loss": float(f"{lost - before:.6g}")}


class RanksWatch(_StragglerWatch):
    """Computes the signals of this rank. On rank 0, compares the signals of all ranks."""

    def __init__(self, recorder: Recorder, ranks: Exchange, context: FitContext) -> None:
        model = context.model
        self._device, self._staged = recorder.run.timeline == "device", recorder.run.unstaged is None
        self._sharded = gradient_moments.sharded(model)
        super().__init__(
            recorder, model_compared=not (self._sharded and self._device), waits_timed=self._staged and not self._device
        )
        self._ranks, self._coordinates, self._transfers = ranks, coordinates(model), WAITS.transfers
        self._parameters = gradient_moments.size_of(model)
        self._local: LocalTimes | None = None
        self._made, self._analysed = 0, 1
        """First step in this rank's newest window; and after all analysed windows."""
        self._failed, self._compares = False, True
        if self._staged and not self._device:  # a hook for gradients would run on the host, ahead of the device
            self._local = self._local_times(context)
        ranks.set_reader(self.window_gathered)

    def _local_times(self, context: FitContext) -> LocalTimes:
        """If parameters are sharded, the tape shows all waits, and no hook is needed."""
        model, called = context.model, None
        parameter = None if self._sharded else gradient_moments.last_parameter(model)
        if parameter is None:
            return LocalTimes(deque(), reduced=False)
        with guard(let_pass):  # an integration's objects may be anything
            called = context.objects().called
        wrapper = gradient_moments.wrapper_of(model, called)
        self._moments = GradientMoments(parameter, self._recorder.clock, wrapper)  # closes when it is freed
        self._recorder.patches.add(self._moments.close)
        return LocalTimes(self._moments.noted, reduced=wrapper is not None)

    @override
    def marks_read(self, pairs: Sequence[Any], numbers: Sequence[int]) -> None:
        """After an error, this rank sends no more signals, but goes on measuring."""
        if self._local is None or self._failed:
            return
        with guard(logs(log.warning, NO_MORE)):
            self._local.marks_read(pairs, numbers)
            return
        self._failed = True

    @override
    def window_part(self, steps: Columns) -> StepSignals:
        """After an error, this rank sends no more signals, but goes on measuring."""
        if self._failed:
            return {}
        with guard(logs(log.warning, NO_MORE)):
            return self._make_signals(steps)
        self._failed = True
        return {}

    def _make_signals(self, steps: Columns) -> StepSignals:
        self._made = steps.number[0]
        transfers, self._transfers = self._transfers < WAITS.transfers, WAITS.transfers
        self._ranks.role = {**self._coordinates, KIND: kind(steps.stages, self._parameters, transfers=transfers)}
        if not self._staged or in_compiled_code():
            self.untimed_steps += len(steps.number)
            return {}
        if self._local is None:
            return signals.of_stages(steps, sharded=self._sharded)
        times = self._local.take(steps.number)
        for time_, backward, reason in zip(times, steps.stages[Stage.BACKWARD], steps.excluded, strict=True):
            if time_ is None or reason is not None:
                continue
            if math.isnan(time_.local):
                self.untimed_steps += 1
            else:
                self.timed_steps += 1
                self.waited_seconds += time_.waited
                self.backward_seconds += backward
        return signals.of_local_times(steps, times)

    def window_gathered(self, window: GatheredWindow) -> None:
        """After an error, ranks are no longer compared, but the exchange goes on."""
        last = window.first_step + window.steps
        try:
            with guard(logs(log.warning, NO_MORE, trace=True)):
                if self._compares:
                    self.analyse(range(window.first_step, last), window.signals, window.roles)
                return
            self._compares = False
        finally:
            self._analysed = last

    @override
    def before_summary(self) -> None:
        if self._recorder.run.rank == 0 and self._recorder.failure is None:
            deadline = monotonic() + LAST_SECONDS
            self._recorder.engine.flush(self._recorder.clock())
            while self._analysed <= self._made and monotonic() < deadline:
                sleep(0.01)
                self._recorder.engine.flush(self._recorder.clock())  # a device may have ended its last steps now


class SingleWatch(_StragglerWatch):
    """In the watchdog's thread, looks for steps of a single process that took unusually long."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._device = recorder.run.timeline == "device"
        self._heard: deque[Steps] = deque(maxlen=256)
        self._kept: list[Steps] = []
        self._ended = self._failed = False
        self._comparing = threading.Lock()  # the watchdog's thread may be comparing when the fit ends

    @override
    def record_written(self, record: Record) -> None:
        if isinstance(record, Steps):
            self._heard.append(record)

    def tick(self, now: float) -> bool:  # noqa: ARG002 the watchdog calls with the time
        if not self._ended:
            self._compare(ALONE_STEPS)
        return not self._ended and not self._failed

    @override
    def closed(self) -> None:
        self._ended = True

    @override
    def summary(self) -> dict[str, StragglerSummary]:
        if self._ended:
            self._compare(FEWEST_STEPS)
        return super().summary()

    def _compare(self, fewest: int) -> None:
        if self._failed or not self._comparing.acquire(timeout=LAST_SECONDS):
            return
        try:
            with guard(logs(log.warning, "perf_callbacks: the search for slow steps has ended, training goes on: %s")):
                while self._heard:
                    self._kept.append(self._heard.popleft())
                if sum([len(steps.step) for steps in self._kept]) >= fewest:
                    kept, self._kept = self._kept, []
                    numbers = [number for steps in kept for number in steps.step]
                    self.analyse(numbers, {0: signals.of_records(kept, device=self._device)})
                return
            self._failed = True
        finally:
            self._comparing.release()
