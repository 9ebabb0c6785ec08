"""Observer that adds the effective training time ratio to the metrics of a resumed fit."""

from collections.abc import Mapping

from typing_extensions import override

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.fit.training_objects import FitContext


def begin(recorder: Recorder, _context: FitContext) -> "GoodputWatch | None":
    """None if the run is not resumed or its checkpoint has no times."""
    timed = recorder.chain.resumed and recorder.chain.elapsed_seconds is not None
    return GoodputWatch(recorder) if timed else None


class GoodputWatch(Observer):
    """Adds `perf/ettr` to the logged metrics of a resumed fit."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @override
    def metrics(self, kind: str) -> Mapping[str, float]:
        recorder, engine = self._recorder, self._recorder.engine
        ettr = recorder.chain.ettr(recorder.clock() - engine.account.began, engine.productive_seconds())
        return {} if ettr is None else {"ettr": ettr}
