"""A table of the CPUs of each rank of a machine, beside its GPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from perf_callbacks.report.layout import aligned
from perf_callbacks.report.units import DASH


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """CPUs of a rank. None: unknown, or there is no GPU."""

    rank: int
    gpu: str | None
    """PCI id."""
    numa_nodes: str | None
    """NUMA node of the GPU, or NUMA nodes of the CPUs if there is no GPU."""
    cpus: str | None
    """CPUs that the rank may run on now."""
    cpus_in_training: str | None
    """CPUs that the rank would run on in a training."""
    threads: int
    """Threads of the process that may run on `cpus` now; other threads were pinned elsewhere."""
    status: str
    """Status of the item `affinity`."""


HEADER = ("rank", "GPU", "NUMA", "CPUs", "in a training", "threads", "affinity")


def render(bindings: Sequence[Binding | int]) -> str:
    """Render the table. A number stands for a rank that did not answer.

    >>> row = Binding(rank=0, gpu="0000:1b:00.0", numa_nodes="0", cpus="0-7", cpus_in_training="0-3", threads=5,
    ...     status="to be applied"); print(render([row, 1]))
    rank  GPU           NUMA  CPUs  in a training  threads  affinity
       0  0000:1b:00.0  0     0-7   0-3            5        to be applied
       1  —             —     —     —              —        no answer
    """
    return "\n".join(aligned([HEADER, *map(_cells, bindings)], right={0}))


def _cells(binding: Binding | int) -> tuple[str, ...]:
    if isinstance(binding, int):
        return (str(binding), *[DASH] * 5, "no answer")
    return (
        str(binding.rank),
        binding.gpu or DASH,
        binding.numa_nodes or DASH,
        binding.cpus or DASH,
        binding.cpus_in_training or DASH,
        str(binding.threads) if binding.cpus else DASH,
        binding.status,
    )
