"""Use of CPUs, GPUs and memory by each rank and by the whole job."""

from array import array
from collections.abc import Callable, Mapping, Sequence

UNKNOWN = -1.0
"""Sent by a rank that doesn't know a resource. NaN is not equal to itself."""

LARGEST = 1e9
"""A value of at least this size is impossible, and counts as unknown."""

CORES, RESIDENT, UTILIZATION, GPU_MEMORY, WATTS = RESOURCES = (
    "cpu_cores",
    "resident_gb",
    "gpu_utilization",
    "gpu_memory_gb",
    "power_watts",
)

JOB_FIGURES: Mapping[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "job_cpu_cores": (CORES, sum),
    "job_resident_gb": (RESIDENT, sum),
    "job_gpu_utilization": (UTILIZATION, lambda values: sum(values) / len(values)),
    "job_gpu_utilization_min": (UTILIZATION, min),
    "job_gpu_memory_max_gb": (GPU_MEMORY, max),
    "job_power_watts": (WATTS, sum),
}
"""Metric of the job -> resource of the ranks, and what combines their values."""


def job_figures(resources: "array[float]", *, complete: bool) -> dict[str, float]:
    """Combine the resources of all ranks into metrics of the job, without those that any rank lacks."""
    if not complete or not resources:
        return {}
    columns = {name: resources[place :: len(RESOURCES)] for place, name in enumerate(RESOURCES)}
    # The bytes of another rank may hold anything. `min` and `max` would overlook a NaN.
    complete_columns = {
        name: column for name, column in columns.items() if all([0 <= value < LARGEST for value in column])
    }
    figures = {
        name: combine(complete_columns[of]) for name, (of, combine) in JOB_FIGURES.items() if of in complete_columns
    }
    return {name: float(f"{value:.6g}") for name, value in figures.items()}


def by_rank(resources: "array[float]", ranks: Sequence[int], world_size: int) -> dict[str, tuple[float | None, ...]]:
    """Return a value for each rank of the job, None if unknown. A resource that no rank knows is left out."""
    values_by_name = {}
    for place, name in enumerate(RESOURCES):
        values = dict(zip(ranks, resources[place :: len(RESOURCES)], strict=True))
        rounded = {rank: float(f"{value:.4g}") for rank, value in values.items() if 0 <= value < LARGEST}
        if rounded:
            values_by_name[name] = tuple([rounded.get(rank) for rank in range(world_size)])
    return values_by_name


def packed(resources: Mapping[str, float]) -> "array[float]":
    """Pack the values in the order of `RESOURCES`.

    >>> packed({"cpu_cores": 1.5})
    array('f', [1.5, -1.0, -1.0, -1.0, -1.0])
    """
    values = [resources.get(name, UNKNOWN) for name in RESOURCES]
    return array("f", [value if 0 <= value < LARGEST else UNKNOWN for value in values])
