"""What the training thread may say of itself: that it turns to a stage, for good or for the length of a call."""

from typing import Final, NamedTuple

from perf_callbacks.core.stages import Stage


class Begin:
    """It turns to a stage until the next `BACK`, and then to what it was in before."""

    __slots__ = ("stage",)

    def __init__(self, stage: Stage) -> None:
        self.stage = stage


class Back:
    """It turns back to what it was in before the last `Begin`."""

    __slots__ = ()


class End:
    """A step ends. The next one begins with what belongs to no stage, and nothing to turn back to."""

    __slots__ = ()


BEGIN: Final = {stage: Begin(stage) for stage in Stage}
BACK: Final = Back()
END: Final = End()


class Pause(NamedTuple):
    """A garbage collection."""

    generation: int
    start: float
    seconds: float
    collected: int
    automatic: bool
    here: bool
    """In the training thread."""
    ours: str | None = None
    """As `Gc.ours`."""


Mark = Stage | Begin | Back | End

# Looking a member up in its class costs more than most of what is done here.
_OPTIMIZER, _OTHER, _UNDECIDED = Stage.OPTIMIZER, Stage.OTHER, Stage.UNDECIDED


class Course:
    """Follows marks: what the time between two of them belongs to."""

    __slots__ = ("before", "stage")

    def __init__(self) -> None:
        self.stage = _OTHER
        self.before: list[Stage] = []

    def turn(self, mark: Mark) -> Stage:
        """There is a mark; gives the stage that the time until it belongs to."""
        until = self.stage
        if mark is END:
            self.before.clear()
            self.stage = _OTHER
        elif mark is BACK:
            self.stage = self.before.pop() if self.before else _OTHER
        elif isinstance(mark, Begin):
            self.before.append(until)
            self.stage = mark.stage
        elif isinstance(mark, Stage):
            self.stage = mark
        if until is _UNDECIDED:  # what follows a backward shows what the time since belongs to
            return _OPTIMIZER if self.stage is _OPTIMIZER else _OTHER
        return until
