"""Observer that passes stalls, slow ranks, drift and the end of a fit to the user's command."""

import shutil
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from perf_callbacks.advice import drift
from perf_callbacks.kernel.clock import unix_time
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.failures import guard, logs
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.process import helper_process
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.fit_records import Record, Summary
from perf_callbacks.kernel.settings.config import printable
from perf_callbacks.kernel.settings.on_event import VARIABLE
from perf_callbacks.notifications import event
from perf_callbacks.notifications.event import Origin
from perf_callbacks.notifications.sender import Sender

AT_ONCE, REFILL_SECONDS = 10, 60.0
"""Most events in quick succession, and seconds until one more is allowed. The end of the fit is always sent."""

STEP_SECONDS = 10.0
"""Between two messages that send the current step to the side process."""

NO_COMMAND = "perf_callbacks: %s has no effect: %s."

NO_MORE = "perf_callbacks: no more events for the command, training goes on: %s"


def begin(recorder: Recorder, _context: FitContext) -> "Notifications | None":
    """None if the environment sets no command, or if the command can't be run."""
    command = recorder.on_event
    if not command:
        return None
    reason = helper_process.why_not("commands for events")
    if reason is None and shutil.which(command[0]) is None:
        reason = f"there is no program {printable(command[0])!r}"
    if reason is not None:
        if recorder.run.rank == 0:
            log.warning(NO_COMMAND, VARIABLE, reason)
        return None
    watch = Notifications(recorder, command)
    WATCHDOG.watch(watch)
    return watch


class Notifications(Observer):
    """Passes events to a side process, which runs the user's command.

    Rank 0 starts it when the fit begins, another rank when it reports a stall.
    """

    def __init__(self, recorder: Recorder, command: tuple[str, ...], start: Callable[..., Sender] = Sender) -> None:
        self._recorder, self._command, self._start = recorder, command, start
        journal = recorder.journal_path
        directory = None if journal is None else str(journal.absolute().parent.parent)
        self._origin = Origin(run=recorder.run, directory=directory)
        self._sender: Sender | None = None
        self._allowed, self._refilled = float(AT_ONCE), recorder.clock()
        self._dropped = 0
        self._flooded = self._ended = False
        self._step_at = 0.0
        if recorder.run.rank == 0:
            with guard(logs(log.warning, NO_MORE)):
                self._reach()

    @override
    def happened(self, kind: str, details: Mapping[str, Any]) -> None:
        with guard(logs(log.warning, NO_MORE)):
            sentence = str(details.get("text", kind))
            step = int(details.get("step", self._recorder.step))
            self._send(self._origin.event(kind, sentence, details, step=step, now=unix_time()), limited=True)

    @override
    def record_written(self, record: Record) -> None:
        if isinstance(record, Summary) and self._recorder.run.rank == 0 and not self._ended:
            self._ended = True
            with guard(logs(log.warning, NO_MORE)):
                for finding in record.findings:
                    if finding.cause == drift.CAUSE:
                        self._send(self._origin.drift(finding, step=record.step, now=unix_time()))
                self._send(self._origin.end(record, now=unix_time()), last=True)

    def tick(self, now: float) -> bool:
        if self._sender is not None and not self._ended and now >= self._step_at:
            self._step_at = now + STEP_SECONDS
            self._sender.note_step(self._recorder.step)
        return self._recorder.active

    @override
    def closed(self) -> None:
        if self._recorder.run.rank != 0 and self._sender is not None:
            self._sender.dismiss()

    def _reach(self) -> Sender:
        if self._sender is None:
            first, step = self._recorder.run.rank == 0, self._recorder.step
            lost = self._origin.lost(step=step, now=unix_time()) if first else None
            self._sender = self._start(self._command, lost)
            weakref.finalize(self, self._sender.dismiss).atexit = False  # for a fit that nobody ends
        return self._sender

    def _send(self, message: dict[str, Any], *, limited: bool = False, last: bool = False) -> None:
        """If the limit is reached, or the side process can't keep up, only count the event."""
        if not limited or self._may():
            if self._dropped:
                message = {**message, "dropped": self._dropped}
            if self._reach().send(event.line(message), last=last):
                self._dropped = 0
                return
        self._dropped += 1
        if not self._flooded:
            self._flooded = True
            log.warning(
                "perf_callbacks: too many events for the command of %s: further events are only counted, as `dropped` "
                "in the next event.",
                VARIABLE,
            )

    def _may(self) -> bool:
        now = self._recorder.clock()
        self._allowed = min(AT_ONCE, self._allowed + (now - self._refilled) / REFILL_SECONDS)
        self._refilled = now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True
