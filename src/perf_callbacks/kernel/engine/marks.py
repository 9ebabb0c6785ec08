"""Marks that the training thread writes when it enters or leaves a stage."""

from typing import Final, NamedTuple

from perf_callbacks.kernel.engine.stages import Stage


class Begin:
    """Start of a stage. The matching `BACK` ends the stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage


class Back:
    """End of the stage of the matching `Begin`. The stage before it continues."""


class End:
    """End of a step. The next step begins in the stage `OTHER`, with no stage to return to."""


BEGIN: Final = {stage: Begin(stage) for stage in Stage}
BACK: Final = Back()
END: Final = End()

WAIT: Final = BEGIN[Stage.COMMUNICATION]

ONE_MORE_FORWARD: Final = (BEGIN[Stage.OTHER], BEGIN[Stage.FORWARD], BACK, BACK)
"""Together they add 1 to the number of forwards, and leave the current stage unchanged."""


class Pause(NamedTuple):
    """A garbage collection."""

    generation: int
    start: float
    seconds: float
    collected: int
    automatic: bool
    here: bool
    """True if the collection ran in the training thread."""
    ours: str | None = None
    """Why the checklist collected, such as "schedule". None: Python or the program collected."""
    made: int = 0
    """`gc.get_count()[0]` before a collection of the checklist."""


Mark = Stage | Begin | Back | End

# Looking up the member of an enum costs more than most of the code in this module.
_OPTIMIZER, _OTHER, _UNDECIDED = Stage.OPTIMIZER, Stage.OTHER, Stage.UNDECIDED
_FORWARD, _BACKWARD, _DATA = Stage.FORWARD, Stage.BACKWARD, Stage.DATA
_COMMUNICATION, _ASIDE = Stage.COMMUNICATION, Stage.ASIDE


class Calls(NamedTuple):
    """Forwards and backwards in a step. Two marks for the forward with no other between them count as one forward.

    If a plain loop calls the model twice without a backward in between, the second call is not always marked.
    """

    forwards: int
    backwards: int


class StageTracker:
    """Follows marks, and knows the stage of the training thread between two marks."""

    def __init__(self) -> None:
        self.stage = _OTHER
        self.before: list[Stage] = []
        self.earlier = Calls(0, 0)
        """Calls of the current step before the tracker began."""
        self._forwards = self._backwards = 0
        self.fetches = self.fetches_at_backward = 0
        """Waits for data so far, and their number at the most recent backward."""

    def resume(self, tracker: "StageTracker") -> None:
        self.stage, self.before = tracker.stage, [*tracker.before]
        self._forwards, self._backwards = tracker.calls
        self.fetches, self.fetches_at_backward = tracker.fetches, tracker.fetches_at_backward

    @property
    def calls(self) -> Calls:
        return Calls(self._forwards, self._backwards)

    def take_calls(self) -> Calls:
        calls = Calls(self._forwards, self._backwards)
        self._forwards = self._backwards = 0
        return calls

    def turn(self, mark: Mark) -> Stage:
        """Apply a mark, and return the stage before it."""
        until = self.stage
        if mark is END:
            self.before.clear()
            self.stage = _OTHER
        elif mark is BACK:
            self.stage = self.before.pop() if self.before else _OTHER
        else:
            if isinstance(mark, Begin):
                self.before.append(until)
                if mark is not WAIT or (until is not _BACKWARD and until is not _ASIDE):
                    self.stage = mark.stage
            elif isinstance(mark, Stage):
                self.stage = mark
            if self.stage is not until:
                self._forwards += self.stage is _FORWARD
                self.fetches += self.stage is _DATA
                if self.stage is _BACKWARD:
                    self._backwards += 1
                    self.fetches_at_backward = self.fetches
        if until is _UNDECIDED:  # the next stage decides: a collective after a backward clips or averages gradients
            return _OPTIMIZER if self.stage is _OPTIMIZER or self.stage is _COMMUNICATION else _OTHER
        return until
