"""The stages of a step, the undecided stage, and work outside steps."""

from enum import IntEnum


class Stage(IntEnum):
    """A kind of work of the training thread. At each moment the thread is in exactly one stage."""

    DATA = 0
    """Waiting for the loader, copying to the device."""
    FORWARD = 1
    """The whole call of the model, hooks included, and the loss."""
    BACKWARD = 2
    OPTIMIZER = 3
    """Clipping, scaler, optimizer step, scheduler, zero_grad."""
    COMMUNICATION = 4
    """Blocked in a collective outside of backward: waiting for other ranks, or exchanging data with them."""
    GC = 5
    """Garbage collection, subtracted from the stage in which it ran."""
    OTHER = 6
    """Logging, callbacks, the rest of the step."""
    UNDECIDED = 7
    """Time after a backward of a plain loop. If an optimizer step or a collective follows, the time counts as
    optimizer, else as other."""
    ASIDE = 8
    """Evaluation, checkpointing and other work that is part of no step."""


STAGES = (
    Stage.DATA,
    Stage.FORWARD,
    Stage.BACKWARD,
    Stage.OPTIMIZER,
    Stage.COMMUNICATION,
    Stage.GC,
    Stage.OTHER,
)
"""Stages that make up a step, in display order."""
