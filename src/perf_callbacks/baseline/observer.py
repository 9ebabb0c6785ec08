"""Comparison of a running fit with its baseline, which is shown in a line after the first steps.

When the fit ends, the observer adds the run to the ledger.
"""

import os
from collections.abc import Callable, Sequence
from threading import Thread

from typing_extensions import override

from perf_callbacks.baseline import ledger
from perf_callbacks.baseline.ledger import LedgerLine
from perf_callbacks.baseline.standing import line, standing
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.failures import guard, logs
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.setup import Training
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.fit_records import Record, Summary
from perf_callbacks.report import run_figures
from perf_callbacks.report.run_figures import RunFigures
from perf_callbacks.trials import turn

EARLY_STEPS = 100
"""A run is compared with its baseline after at least this many measured steps."""

EARLY_SECONDS = 10.0
"""The compared steps must last at least this many seconds. In their first second, even equal runs differ much."""

RUNS = 5
"""Largest number of runs in a baseline."""

CLOSE_SECONDS = 1.0
"""Longest time in seconds for which the end of a fit waits for the write to the ledger."""


def begin(recorder: Recorder, training: Training) -> "BaselineWatch | None":
    """Return the observer that compares this fit with its baseline, or None if the fit is not compared.

    Only rank 0 compares. A fit in a trial or without a journal is not compared.
    """
    if recorder.run.rank != 0 or not recorder.config.journal or turn.of_process() is not None:
        return None
    watch = BaselineWatch(recorder, training.show)
    with suppress(RuntimeError):  # no thread available: no line, neither on the console nor in the ledger
        if recorder.config.baseline is not None:
            Thread(target=watch.read, name="perf_callbacks baseline", daemon=True).start()
        WATCHDOG.watch(watch)
    return watch


class BaselineWatch(Observer):
    """Compares a fit with its baseline on the watchdog's thread.

    A disk may hang, so short-lived threads read the baseline and write the ledger. The training thread waits for a
    disk only at the end of the fit, until the ledger is written.
    """

    def __init__(self, recorder: Recorder, show: Callable[[str], object]) -> None:
        self._recorder, self._show, self._file = recorder, show, ledger.path()
        self._process = os.getpid()
        self._baseline: Sequence[RunFigures] = ()
        self._early: RunFigures | None = None
        self._known, self._ended = recorder.config.baseline is None, False

    def read(self) -> None:
        """Read the runs of the baseline. This method runs on a separate thread."""
        with guard(logs(log.info, "perf_callbacks: no baseline: %s.")):
            run = self._recorder.run
            lines = ledger.last(ledger.read(self._file), ledger.key(run), RUNS, besides=run.run_id)
            self._baseline = [earlier.early for earlier in lines if earlier.early is not None]
        self._known = True

    def tick(self, now: float) -> bool:  # noqa: ARG002 what counts is the number of steps
        """Compare the run's first steps with the baseline as soon as enough steps are measured."""
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
        """Return the figures of the first steps.

        Return None if too few steps are measured, or if the steps can't be read now.
        """
        recorder = self._recorder
        if recorder.step - recorder.run.step <= EARLY_STEPS:
            return None
        summary = recorder.engine.interim_summary(recorder.clock())
        if summary is None or summary.included_steps < EARLY_STEPS:
            return None
        figures = run_figures.of(recorder.run, summary)
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
        found = standing(early, self._baseline)
        if found is None:
            return
        text = line(found)
        self._show(text)
        if found.slower:
            details = {"text": text, "change": found.change.change, "runs": found.runs}
            self._recorder.observers.happened("regression", details)

    def _append(self, summary: Summary) -> None:
        with guard(logs(log.debug, "perf_callbacks: no line in the ledger of runs: %s.")):
            run, journal = self._recorder.run, self._recorder.journal_path
            directory = None if journal is None else str(journal.parent.parent.absolute())
            state = "ended" if summary.failure is None else "failed"
            figures = run_figures.of(run, summary, directory=directory, state=state)
            ledger.append(LedgerLine(key=ledger.key(run), run=figures, early=self._early), self._file)
