"""Comparison of a running fit with its baseline, shown after the first steps. At its end, the ledger gets the run."""

import os
from collections.abc import Callable, Sequence
from threading import Thread

from typing_extensions import override

from perf_callbacks.baseline import ledger
from perf_callbacks.baseline.ledger import LedgerLine
from perf_callbacks.baseline.standing import against_runs, line
from perf_callbacks.kernel.clock import CLOSE_SECONDS
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.failures import guard, logs
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.fit_records import Record, Summary
from perf_callbacks.report import run_figures
from perf_callbacks.report.run_figures import RunFigures
from perf_callbacks.trials import process

EARLY_STEPS = 100

EARLY_SECONDS = 10.0
"""Least duration of the compared steps. In their first second, even equal runs differ much."""

RUNS = 5


def begin(recorder: Recorder, context: FitContext) -> "BaselineWatch | None":
    """None if the fit is not compared: on other ranks than 0, in a trial, or without a journal."""
    if recorder.run.rank != 0 or not recorder.config.journal or process.current_trial() is not None:
        return None
    watch = BaselineWatch(recorder, context.show)
    with suppress(RuntimeError):  # no thread available: no line, neither on the console nor in the ledger
        if recorder.config.baseline is not None:
            Thread(target=watch.read, name="perf_callbacks baseline", daemon=True).start()
        WATCHDOG.watch(watch)
    return watch


class BaselineWatch(Observer):
    """Compares a fit with its baseline on the watchdog's thread.

    A disk may hang, so short-lived threads read the baseline and write the ledger. The training thread waits for a
    disk only at the end of the fit.
    """

    def __init__(self, recorder: Recorder, show: Callable[[str], object]) -> None:
        self._recorder, self._show, self._file = recorder, show, ledger.path()
        self._process = os.getpid()
        self._baseline: Sequence[RunFigures] = ()
        self._early: RunFigures | None = None
        self._known, self._ended = recorder.config.baseline is None, False

    def read(self) -> None:
        with guard(logs(log.info, "perf_callbacks: no baseline: %s.")):
            run = self._recorder.run
            lines = ledger.last(ledger.read(self._file), ledger.key(run), RUNS, besides=run.run_id)
            self._baseline = [earlier.early for earlier in lines if earlier.early is not None]
        self._known = True

    def tick(self, now: float) -> bool:  # noqa: ARG002 what counts is the number of steps
        if self._ended:
            return False
        if self._early is None:
            self._early = self._first_steps()
        if self._early is None or not self._known:
            return True
        with guard(logs(log.info, "perf_callbacks: no comparison with the baseline: %s.")):
            self._compare(self._early)
        return False

    def _first_steps(self) -> RunFigures | None:
        """None: too few steps are measured, or the steps can't be read now."""
        recorder = self._recorder
        if recorder.step - recorder.run.step <= EARLY_STEPS:
            return None
        summary = recorder.engine.interim_summary(recorder.clock())
        if summary is None or summary.included_steps < EARLY_STEPS:
            return None
        figures = run_figures.from_records(recorder.run, summary)
        long = (figures.step_seconds or 0.0) * figures.steps >= EARLY_SECONDS
        return figures if long else None

    @override
    def record_written(self, record: Record) -> None:
        if not isinstance(record, Summary) or self._ended or os.getpid() != self._process:
            return
        self._ended = True
        if record.included_steps > 0:
            with suppress(RuntimeError):  # no thread available
                thread = Thread(target=self._append, args=(record,), name="perf_callbacks ledger", daemon=True)
                thread.start()
                thread.join(CLOSE_SECONDS)

    def _compare(self, early: RunFigures) -> None:
        result = against_runs(early, self._baseline)
        if result is None:
            return
        text = line(result)
        self._show(text)
        if result.slower:
            details = {"text": text, "change": result.change.change, "runs": result.runs}
            self._recorder.observers.happened("regression", details)

    def _append(self, summary: Summary) -> None:
        with guard(logs(log.debug, "perf_callbacks: no line in the ledger of runs: %s.")):
            run, journal = self._recorder.run, self._recorder.journal_path
            directory = None if journal is None else str(journal.parent.parent.absolute())
            state = "ended" if summary.failure is None else "failed"
            figures = run_figures.from_records(run, summary, directory=directory, state=state)
            ledger.append(LedgerLine(key=ledger.key(run), run=figures, early=self._early), self._file)
