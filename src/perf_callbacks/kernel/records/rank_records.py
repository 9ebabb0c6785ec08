"""Journal records about ranks that hang, and about ranks that other ranks wait for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """State of a rank when a stall was detected: no step of the rank had ended for a long time."""

    step: int
    """Number of the last step that ended."""
    rank: int
    stage: str
    """Stage that the training thread is in: "data", "forward", "backward", "optimizer", "communication", "other",
    "evaluation" or "checkpoint"."""
    since_seconds: float
    """Seconds that the thread has been in this stage."""
    stack: tuple[str, ...] = ()
    """Python stack of the training thread. Each entry is `file:line function`, and the innermost call comes last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """Rank, or set of ranks, that the other ranks waited for. Only rank 0 writes this record."""

    step: int
    rank: int
    """The slow rank, or the slowest rank of a set of slow ranks."""
    cause: str
    """One of gc, data, steal (waiting for a CPU), device, host."""
    seconds_lost: float
    """Seconds that the cause added to all affected steps together."""
    steps: int = 1
    """Number of affected steps. The field `step` is the number of the last affected step."""
    ranks: tuple[int, ...] = ()
    """All ranks of a set of slow ranks, in ascending order. The job would lose the same time if only one rank of the
    set were slow. Empty if only `rank` is slow."""
