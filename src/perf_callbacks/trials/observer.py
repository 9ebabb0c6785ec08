"""Connection of a measured fit to its trial. The trial reads the fit's findings, and ends when the fit ends."""

import sys
import weakref

from typing_extensions import override

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.records.fit_records import APPLIED, Checklist, Record
from perf_callbacks.trials import changes, process
from perf_callbacks.trials.process import TrialProcess


def begin(recorder: Recorder, context: FitContext) -> "TrialFit | None":
    trial = process.current_trial()
    if trial is None:
        return None
    trial.own_callback = not context.armed
    observer = TrialFit(recorder, trial)
    for row in context.checklist:
        observer.record_written(row)
    changes.at_begin(trial, context.objects().called or context.model)
    return observer


ITEMS = {"gc": "gc", "affinity": "affinity", "loaders": "pinning"}
"""The remedy that makes the same change as an item of the checklist."""


class TrialFit(Observer):
    """Observer of the fit that runs in a trial."""

    def __init__(self, recorder: Recorder, trial: TrialProcess) -> None:
        self._trial, self._recorder = trial, recorder
        trial.recorder = weakref.ref(recorder)

    @override
    def record_written(self, record: Record) -> None:
        if isinstance(record, Checklist) and record.item in ITEMS:
            (self._trial.applied.add if record.status == APPLIED else self._trial.applied.discard)(ITEMS[record.item])

    @override
    def closed(self) -> None:
        """End the process, so that no code of the program runs after the last step of a trial.

        Errors, ours or the program's, don't end it.
        """
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)  # the latter at the interpreter's exit
        crashed = self._recorder.failure is not None and error is not None
        if not self._recorder.failed and not crashed:
            self._trial.ended()
