"""The stages of a step, the undecided stage, and the stage of work outside of steps."""

from enum import IntEnum


class Stage(IntEnum):
    """Kind of work that the training thread does. At each moment the thread is in exactly one stage."""

    DATA = 0
    """Waiting for the data loader, and copying batches to the device."""
    FORWARD = 1
    """Calling the model, including its hooks, and computing the loss."""
    BACKWARD = 2
    OPTIMIZER = 3
    """Gradient clipping, gradient scaler, optimizer step, learning rate scheduler, and `zero_grad`."""
    COMMUNICATION = 4
    """Waiting in a collective outside of backward. The rank waits for other ranks to arrive, or for data."""
    GC = 5
    """Garbage collection. The stage in which a collection ran does not include the time of the collection."""
    OTHER = 6
    """Logging, callbacks, and all work of a step that is in no other stage."""
    UNDECIDED = 7
    """In a plain loop, the time from a backward to the next stage. If the next stage is an optimizer step or a
    collective, the undecided time is added to `OPTIMIZER`. If any other stage comes next, the undecided time is added
    to `OTHER`."""
    ASIDE = 8
    """Evaluation, checkpointing and other work that is part of no step."""


STAGES = tuple([stage for stage in Stage if stage < Stage.UNDECIDED])
"""Stages that make up a step, in the order in which reports show them."""
