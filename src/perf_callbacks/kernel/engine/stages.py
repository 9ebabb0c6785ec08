"""The stages of a step, and the two that belong to none."""

from enum import IntEnum


class Stage(IntEnum):
    """A kind of work of the training thread. At each moment there is exactly one."""

    DATA = 0
    """Waiting for the loader, copying to the device."""
    FORWARD = 1
    """The whole call of the model, hooks included, and the loss."""
    BACKWARD = 2
    OPTIMIZER = 3
    """Clipping, scaler, optimizer step, scheduler, zero_grad."""
    GC = 4
    """Garbage collection, carved out of the stage it fell in."""
    OTHER = 5
    """Logging, callbacks, the rest of the step."""
    UNDECIDED = 6
    """After a backward in a loop we can't see into: optimizer if an optimizer step is what follows, else other."""
    ASIDE = 7
    """Evaluation, checkpointing, anything that is part of no step."""


STAGES = (Stage.DATA, Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER, Stage.GC, Stage.OTHER)
"""Those that make up a step, in the order in which they are shown."""
