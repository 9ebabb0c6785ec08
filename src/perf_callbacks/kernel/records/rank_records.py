"""Records of ranks that hang, or that other ranks wait for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """State of a rank whose steps have stopped ending, at the moment of detection."""

    step: int
    """Number of the last step that ended."""
    rank: int
    stage: str
    """Stage that the training thread is in: "data", "forward", "backward", "optimizer", "communication", "other",
    "evaluation" or "checkpoint"."""
    since_seconds: float
    """Time in this stage."""
    stack: tuple[str, ...] = ()
    """Python stack of the training thread, `file:line function`, innermost last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """Rank, or set of ranks, that the other ranks waited for. In rank 0's journal."""

    step: int
    rank: int
    """The slowest rank of a set."""
    cause: str
    """One of gc, data, steal (waiting for a CPU), device, host."""
    seconds_lost: float
    """Seconds by which the cause made the affected steps longer, in total."""
    steps: int = 1
    """Number of affected steps up to `step`; more than 1 for ranks that are slow for long."""
    ranks: tuple[int, ...] = ()
    """All ranks of a set, in order: the job loses the time as long as one of them is slow. Empty: `rank` alone."""
