"""Kinds of work: the parts of a step that a rank does, and the size of its model.

Ranks may do different work on purpose, such as actor and critic. Only ranks of the same kind are compared; the kind is
a coordinate of a rank, like its place on a device mesh.
"""

from collections.abc import Mapping, Sequence

from perf_callbacks.kernel.engine.stages import Stage

PARTS = (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER)

TRANSFERS = 1 << len(PARTS)
"""Bit in a kind of work: the rank exchanges tensors with one other rank at a time."""

STAGES = frozenset({"pipeline", "pipe", "pp"})
"""Coordinates that decide which layers a rank computes. Only ranks with the same layers are compared."""

CONTEXT = frozenset({"cp", "sp", "context", "sequence"})
"""In names of coordinates along which ranks that do the same work pass tensors around."""

KIND = "kind"
"""Coordinate that holds a rank's kind of work."""

Role = tuple[tuple[str, int], ...]
"""Sorted by name."""


def kind(stages: Sequence[Sequence[float | None]], parameters: int, *, transfers: bool) -> int:
    """Return a rank's kind of work: a bit for each of `PARTS` that took time in any step, and one for transfers.

    Higher bits are the number of the model's parameters, 0 if unknown.
    """
    done = [any(stages[stage]) for stage in PARTS]
    bits = sum([1 << place for place, present in enumerate([*done, transfers]) if present])
    return bits | parameters << len(PARTS) + 1


def layers(role: Mapping[str, int]) -> Role:
    return tuple(sorted([(name, place) for name, place in role.items() if name in STAGES]))


def replica(role: Mapping[str, int]) -> Role:
    """Return what all pipeline stages that process the same batch share."""
    return tuple(sorted([(name, place) for name, place in role.items() if name not in STAGES and name != KIND]))


def kind_of(role: Mapping[str, int]) -> int | None:
    """Return a rank's kind of work, by which it is compared. None: with no other rank.

    All ranks of a pipeline on a device mesh have kind 0, although the first and the last stage do different work. Any
    other rank that exchanges tensors point to point may be a pipeline stage, and isn't compared unless its mesh shows
    context parallelism.
    """
    if layers(role):
        return 0
    kind = role.get(KIND, 0)
    if kind & TRANSFERS:
        return kind - TRANSFERS if any(CONTEXT.intersection(name.split("_")) for name in role) else None
    return kind
