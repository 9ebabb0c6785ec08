"""What the count of a step is worth: its passes, its batches, and the work that it may not have seen."""

from collections.abc import Sequence

from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.work import Work
from perf_callbacks.kernel.batches.reader import Batch
from perf_callbacks.kernel.engine.marks import Calls
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.process.compiler import generates_code

COMPILED = "kernels that torch.compile generated"
REST = "the rest of a step of very many operations"


class CountedStep:
    """Passes of a counted step. If the count ended early, only those counted to their end stay."""

    def __init__(self, counter: FlopCounter, calls: Calls, batches: Sequence[Batch]) -> None:
        self.calls, self.batches = calls, batches
        self.passes = [Work(cells) for cells in counter.passes]  # of each forward with its backward
        self.missing = [COMPILED] if generates_code() else []  # if there is any, the FLOPs are a lower bound
        self.whole = True  # False if the count ended before the model had done its work
        ended = None if counter.limit is None else counter.limit.ended
        if ended is not None and (ended[0] != calls or ended[1] in {Stage.FORWARD, Stage.BACKWARD}):
            self._cut(*ended)
        self.total = Work.sum(self.passes)

    def _cut(self, calls: Calls, stage: Stage) -> None:
        complete = calls.backwards - (stage is Stage.BACKWARD)
        self.whole = False
        if complete and self.calls.forwards == self.calls.backwards == len(self.batches):
            self.passes, self.batches = self.passes[:complete], self.batches[:complete]
            self.calls = Calls(complete, complete)
        else:
            self.missing.append(REST)


def why_useless(counter: FlopCounter, total: Work) -> str:
    if counter.interrupted:
        return "an exception interrupted the counted step"
    if counter.lost:
        return "the counter could not come back to the thread's stack of modes"
    if total.model_flops:
        return "the counted steps trained on no new batch"
    return "the counted steps had no matrix products in forward and backward"
