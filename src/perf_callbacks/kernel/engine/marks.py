"""Marks that the training thread writes when it enters or leaves a stage."""

from typing import Final, NamedTuple

from perf_callbacks.kernel.engine.stages import Stage


class Begin:
    """Mark for the start of a stage. The matching `BACK` ends the stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage


class Back:
    """Mark that ends the stage of the matching `Begin`. The stage before the `Begin` continues."""


class End:
    """Mark for the end of a step. The next step begins in the stage `OTHER`, with no stage to return to."""


BEGIN: Final = {stage: Begin(stage) for stage in Stage}
BACK: Final = Back()
END: Final = End()

WAIT: Final = BEGIN[Stage.COMMUNICATION]
"""Mark for the start of a wait in a collective. `BACK` ends the wait."""

ONE_MORE_FORWARD: Final = (BEGIN[Stage.OTHER], BEGIN[Stage.FORWARD], BACK, BACK)
"""Marks that together add 1 to the number of forwards, and leave the current stage unchanged."""


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
    """Reason why the checklist ran the collection, such as "schedule". None: Python or the program collected."""
    made: int = 0
    """Value of `gc.get_count()[0]` at the start of the collection. Only collections that the checklist runs have this
    number."""


Mark = Stage | Begin | Back | End

# Looking up the member of an enum costs more than most of the code in this module.
_OPTIMIZER, _OTHER, _UNDECIDED = Stage.OPTIMIZER, Stage.OTHER, Stage.UNDECIDED
_FORWARD, _BACKWARD, _DATA = Stage.FORWARD, Stage.BACKWARD, Stage.DATA
_COMMUNICATION, _ASIDE = Stage.COMMUNICATION, Stage.ASIDE


class Calls(NamedTuple):
    """Number of forwards and number of backwards in a step.

    Two marks for the forward count as one forward if no other mark lies between them. If a plain loop calls the model
    twice without a backward in between, the second call is not always marked.
    """

    forwards: int
    backwards: int


class StageTracker:
    """Follows marks, and returns the stage in which the training thread was between two marks."""

    def __init__(self) -> None:
        self.stage = _OTHER
        self.before: list[Stage] = []
        self.earlier = Calls(0, 0)
        """Number of forwards and backwards that the current step had already made when the tracker began."""
        self._forwards = self._backwards = 0
        self.fetches = self.fetches_at_backward = 0
        """`fetches` is the number of waits for data so far. `fetches_at_backward` is the value of `fetches` at the most
        recent backward."""

    def resume(self, tracker: "StageTracker") -> None:
        self.stage, self.before = tracker.stage, [*tracker.before]
        self._forwards, self._backwards = tracker.calls
        self.fetches, self.fetches_at_backward = tracker.fetches, tracker.fetches_at_backward

    @property
    def calls(self) -> Calls:
        """Number of forwards and backwards since the last call of `take_calls`."""
        return Calls(self._forwards, self._backwards)

    def take_calls(self) -> Calls:
        """Return the number of forwards and backwards, and count from 0 again."""
        calls = Calls(self._forwards, self._backwards)
        self._forwards = self._backwards = 0
        return calls

    def turn(self, mark: Mark) -> Stage:
        """Apply a mark, and return the stage in which the thread was before the mark."""
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
