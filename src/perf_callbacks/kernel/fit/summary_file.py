"""Keeps the summary of a fit on disk while the fit goes on, for runs that are killed or hang.

A short-lived thread writes, because a disk may hang. A signal handler would never run while C code hangs.
"""

import os
from threading import Lock, Thread

from typing_extensions import override

from perf_callbacks.kernel.clock import CLOSE_SECONDS
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.failures import describe, guard, logs
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.kernel.process.watchdog import PERIOD_SECONDS, WATCHDOG
from perf_callbacks.kernel.records import interim
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Record, Summary

REPLACE_SECONDS = 10.0
"""Between two replacements of the file, if the watchdog ticks in time."""


def begin(recorder: Recorder, _context: FitContext) -> "SummaryFile | None":
    if not recorder.config.journal:
        return None
    file = SummaryFile(recorder)
    WATCHDOG.watch(file)
    return file


class SummaryFile(Observer):
    """Replaces rank k's `summary<k>.json` every ten seconds, and at the end; never again after a disk error."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._process = os.getpid()
        self._next: float | None = None
        self._writing = Lock()
        self._ended = self._final = self._failed = False

    def tick(self, now: float) -> bool:
        """The first tick writes the first file."""
        if not self._ended and (self._next is None or now >= self._next):
            self._next = now + REPLACE_SECONDS - PERIOD_SECONDS
            summary = None
            with guard(logs(log.debug, "perf_callbacks: no summary so far: %s.")):  # the training thread changed a list
                summary = self._recorder.engine.interim_summary(self._recorder.clock())
            if summary is not None and not self._writing.locked():  # else a disk hangs
                # The disk may hang, and stalls must still be noticed: the watchdog's thread doesn't write.
                with suppress(RuntimeError):  # no thread available
                    Thread(target=self._replace, args=(summary,), name="perf_callbacks summary", daemon=True).start()
        return not (self._ended or self._failed)

    @override
    def record_written(self, record: Record) -> None:
        if isinstance(record, Summary):
            self._final = True
            self._replace(record, final=True)

    @override
    def closed(self) -> None:
        self._ended = True

    def _replace(self, summary: Summary, *, final: bool = False) -> None:
        journal = self._recorder.journal_path
        if journal is None or self._failed or os.getpid() != self._process:  # a forked child has the observers too
            return
        if not self._writing.acquire(timeout=CLOSE_SECONDS):
            return
        try:
            if final or not self._final:
                seconds = self._recorder.clock() - self._recorder.engine.account.began
                interim.write(journal, Entry(seconds, summary))
        except Exception as error:  # noqa: BLE001 a disk error as a rule; an observer never ends the measuring
            let_pass(error)
            self._failed = True
            log.warning(
                "perf_callbacks: no %s beside the journal: %s. Training and metrics go on without it.",
                interim.path_of(journal).name,
                describe(error),
            )
        finally:
            self._writing.release()
