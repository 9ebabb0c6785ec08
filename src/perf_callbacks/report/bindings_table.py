"""Table of the ranks of a machine, with the GPU and the CPUs of each rank."""

from collections.abc import Mapping, Sequence

from perf_callbacks.report.layout import aligned
from perf_callbacks.report.units import DASH

COLUMNS = {
    "rank": "rank",
    "gpu": "GPU",
    "numa_nodes": "NUMA",
    "cpus": "CPUs",
    "cpus_in_training": "in a training",
    "threads": "threads",
    "status": "affinity",
}
"""Heading of each field of a rank."""


def render(ranks: Sequence[Mapping[str, object]]) -> str:
    """Render the table. A field that is missing or None shows as a dash.

    >>> print(render([{"rank": 0, "cpus": "0-7", "cpus_in_training": "0-3", "status": "to be applied"}]))
    rank  GPU  NUMA  CPUs  in a training  threads  affinity
       0  —    —     0-7   0-3            —        to be applied
    """
    rows = [[DASH if rank.get(field) is None else str(rank[field]) for field in COLUMNS] for rank in ranks]
    return "\n".join(aligned([[*COLUMNS.values()], *rows], right={0}))
