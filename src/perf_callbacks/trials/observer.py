"""Connect a measured fit to the turn of its trial: the turn reads findings there, and ends when the fit ends."""

import weakref

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.fit.setup import Training
from perf_callbacks.kernel.records.fit_records import APPLIED, Checklist, Record
from perf_callbacks.trials import changes, turn
from perf_callbacks.trials.turn import Turn


def begin(recorder: Recorder, training: Training) -> "TrialFit | None":
    """Connect this fit to the trial. None: this process is part of no trial."""
    found = turn.of_process()
    if found is None:
        return None
    found.own_callback = not training.armed
    changes.at_begin(found, training.setup().called or training.model)
    return TrialFit(recorder, found)


class TrialFit(Observer):
    """The fit of a trial."""

    def __init__(self, recorder: Recorder, turn: Turn) -> None:
        self._turn, self._recorder = turn, recorder
        turn.recorder = weakref.ref(recorder)

    def record_written(self, record: Record) -> None:
        """Store which items of the checklist are applied."""
        if isinstance(record, Checklist) and record.status == APPLIED:
            self._turn.checklist.add(record.item)

    def closed(self) -> None:
        """Leave the process: nothing after the last step of a trial runs. After an error of ours, training goes on."""
        if not self._recorder.failed:
            self._turn.ended()
