"""The stages of a step, the undecided stage, and the stage of work outside of steps."""

from enum import IntEnum


class Stage(IntEnum):
    """What the training thread does. At each moment it is in exactly one stage."""

    DATA = 0
    """Waiting for the data loader, and copying batches to the device."""
    FORWARD = 1
    """Calling the model, including its hooks, and computing the loss."""
    BACKWARD = 2
    OPTIMIZER = 3
    """Gradient clipping, gradient scaler, optimizer step, learning rate scheduler, and `zero_grad`."""
    COMMUNICATION = 4
    """Waiting in a collective outside of backward, for other ranks or for data."""
    GC = 5
    """Garbage collection. The stage in which it ran does not include its time."""
    OTHER = 6
    """Logging, callbacks, and all work of a step that is in no other stage."""
    UNDECIDED = 7
    """In a plain loop, from a backward on. It is `OPTIMIZER` before an optimizer step or a collective, else `OTHER`."""
    ASIDE = 8
    """Evaluation, checkpointing and other work that is part of no step."""


STAGES = tuple([stage for stage in Stage if stage < Stage.UNDECIDED])
"""In the order of reports."""
