"""Marks that the training thread writes when it enters or leaves a stage."""

from typing import Final, NamedTuple

from perf_callbacks.kernel.engine.stages import Stage


class Begin:
    """The training thread turns to a stage. The matching `BACK` turns to the stage before."""

    __slots__ = ("stage",)

    def __init__(self, stage: Stage) -> None:
        self.stage = stage


class Back:
    """The training thread turns back to the stage before the last `Begin`."""

    __slots__ = ()


class End:
    """A step ends. The next step begins in the stage `OTHER`, with no stage to turn back to."""

    __slots__ = ()


BEGIN: Final = {stage: Begin(stage) for stage in Stage}
BACK: Final = Back()
END: Final = End()

WAIT: Final = BEGIN[Stage.COMMUNICATION]
"""The training thread begins to wait in a collective. `BACK` ends the wait."""

ONE_MORE_FORWARD: Final = (BEGIN[Stage.OTHER], BEGIN[Stage.FORWARD], BACK, BACK)
"""Turn to the forward once more, and then back to the stage before."""


class Pause(NamedTuple):
    """A garbage collection."""

    generation: int
    start: float
    seconds: float
    collected: int
    automatic: bool
    here: bool
    """True: the collection ran in the training thread."""
    ours: str | None = None
    """Reason why the checklist collected, as in `Gc.ours`."""
    made: int = 0
    """In a collection by the checklist: objects made since the last collection, less the objects freed since then."""


Mark = Stage | Begin | Back | End

# Looking up the member of an enum costs more than most of the code in this module.
_OPTIMIZER, _OTHER, _UNDECIDED = Stage.OPTIMIZER, Stage.OTHER, Stage.UNDECIDED
_FORWARD, _BACKWARD, _DATA = Stage.FORWARD, Stage.BACKWARD, Stage.DATA
_COMMUNICATION, _ASIDE = Stage.COMMUNICATION, Stage.ASIDE


class Calls(NamedTuple):
    """How often a step enters the model's forward, and how often it enters the backward.

    Two marks of the forward in a row count once: if a plain loop calls the model twice in a row, the second call is
    marked only sometimes.
    """

    forwards: int
    backwards: int


class StageTracker:
    """Follows marks, and returns the stage of the time between two marks."""

    __slots__ = ("_backwards", "_forwards", "before", "earlier", "fetches", "fetches_at_backward", "stage")

    def __init__(self) -> None:
        self.stage = _OTHER
        self.before: list[Stage] = []
        self.earlier = Calls(0, 0)
        """Calls that the current step made before the tracking began."""
        self._forwards = self._backwards = 0
        self.fetches = self.fetches_at_backward = 0
        """Number of waits for data so far, and their number when the last backward began."""

    def resume(self, tracker: "StageTracker") -> None:
        """Continue from the state of another tracker."""
        self.stage, self.before = tracker.stage, [*tracker.before]
        self._forwards, self._backwards = tracker.calls
        self.fetches, self.fetches_at_backward = tracker.fetches, tracker.fetches_at_backward

    @property
    def calls(self) -> Calls:
        """Turns to forward and backward since the last `take_calls`."""
        return Calls(self._forwards, self._backwards)

    def take_calls(self) -> Calls:
        """Return the calls, and count from 0 again."""
        calls = Calls(self._forwards, self._backwards)
        self._forwards = self._backwards = 0
        return calls

    def turn(self, mark: Mark) -> Stage:
        """Apply a mark, and return the stage of the time before the mark."""
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
