"""Use of the machines by the ranks of a job: the resources of a rank, and figures of the job."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from math import isfinite

UNKNOWN = -1.0
"""Value that ranks send for an unknown amount. NaN would not do: NaN is not equal to NaN."""

LARGEST = 1e9
"""Values from here on are impossible, and count as unknown."""

CORES, RESIDENT, UTILIZATION, GPU_MEMORY, WATTS = RESOURCES = (
    "cpu_cores",
    "resident_gb",
    "gpu_utilization",
    "gpu_memory_gb",
    "power_watts",
)
"""Names of the resources that a rank uses: CPU cores kept busy, host memory, and the use of its GPU."""

JOB_FIGURES: Mapping[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "job_cpu_cores": (CORES, sum),
    "job_resident_gb": (RESIDENT, sum),
    "job_gpu_utilization": (UTILIZATION, lambda values: sum(values) / len(values)),
    "job_gpu_utilization_min": (UTILIZATION, min),
    "job_gpu_memory_max_gb": (GPU_MEMORY, max),
    "job_power_watts": (WATTS, sum),
}
"""Figures of the job, by the names of their metrics: the resource of a rank, and how the ranks' values are combined."""


def job_figures(resources: "array[float]", *, complete: bool) -> dict[str, float]:
    """Combine the resources of ranks. A figure is known only if all ranks of the job know their value.

    Args:
        resources: The values of each rank, rank by rank, in the order of `RESOURCES`.
        complete: True: no rank is missing.
    """
    columns = {name: resources[place :: len(RESOURCES)] for place, name in enumerate(RESOURCES)}
    known = {name: column for name, column in columns.items() if complete and column and _all_known(column)}
    figures = {name: combine(known[of]) for name, (of, combine) in JOB_FIGURES.items() if of in known}
    return {name: float(f"{value:.6g}") for name, value in figures.items()}


def by_rank(resources: "array[float]", ranks: Sequence[int], world_size: int) -> dict[str, tuple[float | None, ...]]:
    """Return each resource that any rank knows, with a value per rank of the job. None: unknown, or a missing rank."""
    found = {}
    for place, name in enumerate(RESOURCES):
        values = dict(zip(ranks, resources[place :: len(RESOURCES)], strict=True))
        known = {rank: float(f"{value:.4g}") for rank, value in values.items() if 0 <= value < LARGEST}
        if known:
            found[name] = tuple([known.get(rank) for rank in range(world_size)])
    return found


def packed(resources: Mapping[str, float]) -> "array[float]":
    """Return the resources of a rank in the order of `RESOURCES`.

    >>> packed({"cpu_cores": 1.5})
    array('f', [1.5, -1.0, -1.0, -1.0, -1.0])
    """
    values = [resources.get(name, UNKNOWN) for name in RESOURCES]
    return array("f", [value if 0 <= value < LARGEST else UNKNOWN for value in values])


def _all_known(values: Sequence[float]) -> bool:
    possible = min(values) >= 0 and max(values) < LARGEST  # the bytes of another rank may hold anything
    return possible and isfinite(sum(values))  # `min` and `max` may overlook a NaN
