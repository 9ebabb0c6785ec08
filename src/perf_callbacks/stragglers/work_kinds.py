"""Kinds of work: the parts of a step that a rank does, and the size of its model.

In some jobs, ranks do different work on purpose. For example, some ranks train an actor and other ranks train a critic.
Only ranks with the same kind of work are compared. The kind is a coordinate of a rank, like its place on a device mesh.
"""

from collections.abc import Mapping, Sequence

from perf_callbacks.kernel.engine.stages import Stage

PARTS = (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER)

TRANSFERS = 1 << len(PARTS)
"""Bit in a kind of work: the rank exchanges tensors point to point, with one other rank at a time."""

STAGES = frozenset({"pipeline", "pipe", "pp"})
"""Names of the coordinates that decide which layers a rank computes. Only ranks with the same layers are compared."""

CONTEXT = frozenset({"cp", "sp", "context", "sequence"})
"""Words in the names of the coordinates along which ranks that do the same work pass tensors around."""

KIND = "kind"
"""Name of the coordinate that holds a rank's kind of work."""

Role = tuple[tuple[str, int], ...]
"""Names and values of a rank's coordinates, sorted by name."""


def kind(stages: Sequence[Sequence[float | None]], parameters: int, *, transfers: bool) -> int:
    """Return a rank's kind of work as a number.

    The number has a bit for each of `PARTS` that took time in any step, and a bit for transfers. The higher bits are
    the number of the model's parameters.

    Args:
        stages: For each stage: its seconds in each step.
        parameters: Number of the model's parameters, or 0 if unknown.
        transfers: True: the rank exchanged tensors point to point.
    """
    done = [any(stages[stage]) for stage in PARTS]
    bits = sum([1 << place for place, found in enumerate([*done, transfers]) if found])
    return bits | parameters << len(PARTS) + 1


def layers(role: Mapping[str, int]) -> Role:
    """Return the coordinates that decide which layers a rank computes."""
    return tuple(sorted([(name, place) for name, place in role.items() if name in STAGES]))


def replica(role: Mapping[str, int]) -> Role:
    """Return the coordinates that are the same for all pipeline stages that process the same batch."""
    return tuple(sorted([(name, place) for name, place in role.items() if name not in STAGES and name != KIND]))


def kind_of(role: Mapping[str, int]) -> int | None:
    """Return a rank's kind of work: the rank is compared with ranks of the same kind.

    None means that the rank is compared with no other rank.

    All ranks of a pipeline on a device mesh have kind 0, although the first and the last stage do different work.
    Otherwise, a rank that exchanges tensors point to point may be a pipeline stage, so the rank is not compared, unless
    its device mesh shows context parallelism.
    """
    if layers(role):
        return 0
    found = role.get(KIND, 0)
    if found & TRANSFERS:
        return found - TRANSFERS if any(CONTEXT.intersection(name.split("_")) for name in role) else None
    return found
