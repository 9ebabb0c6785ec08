"""Journal records about ranks that hang, and about ranks that other ranks wait for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """State of a rank when a stall was detected: no step of the rank had ended for a long time."""

    step: int
    """The last step that ended."""
    rank: int
    stage: str
    """One of "data", "forward", "backward", "optimizer", "communication", "other", "evaluation", "checkpoint"."""
    since_seconds: float
    """Seconds that the thread has been in this stage."""
    stack: tuple[str, ...] = ()
    """Python stack of the training thread: `file:line function`, the innermost call last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """Rank, or set of ranks, that the other ranks waited for. Only rank 0 writes this record."""

    step: int
    rank: int
    """The slow rank, or the slowest of a set."""
    cause: str
    """One of gc, data, steal (waiting for a CPU), device, host."""
    seconds_lost: float
    """Seconds that the cause added to all affected steps together."""
    steps: int = 1
    """Number of affected steps; `step` is the last one."""
    ranks: tuple[int, ...] = ()
    """The whole set, ascending: with one of them slow, the loss would be the same. Empty: only `rank` is slow."""
