"""Chooses CPUs for a rank, near its GPU and within its current CPU mask."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

Cpus = frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Online CPUs of a machine, by NUMA node."""

    nodes: Mapping[int, Cpus]
    quota: float | None = None
    """CPU time that the control group allows, in CPUs. None: no limit is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """Location of a rank's GPU."""

    pci: str
    node: int | None
    """None: the machine has several NUMA nodes, and the firmware doesn't know the GPU's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuFacts:
    """Facts by which the CPUs of a process are chosen."""

    mask: Cpus
    """While no fit is bound to CPUs."""
    machine: Machine
    gpu: Gpu | None = None
    gpu_unknown: str | None = None
    """Why the location of the accelerator is unknown. None: it is known, or training runs on the CPU."""
    local_rank: int = 0
    local_world_size: int = 1
    ranks_unknown: bool = False
    """True: there are other ranks, and their number on this machine is unknown."""
    workers: int = 0
    bound: bool = False
    """True: the process has a smaller CPU mask than its parent."""


@dataclass(frozen=True, slots=True)
class Choice:
    """CPUs chosen for a process, and the reason."""

    cpus: Cpus | None
    """Empty: the mask excludes all suitable CPUs. None: there is nothing to choose."""
    why: str


def parse(text: str) -> Cpus:
    """Parse a list of CPUs in the Linux kernel's format.

    >>> sorted(parse("0-2,8"))
    [0, 1, 2, 8]
    """
    spans = [part.partition("-") for part in text.strip().split(",") if part.strip()]
    return frozenset([cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1)])


def ranges(cpus: Iterable[int]) -> str:
    """Render CPUs in the Linux kernel's format.

    >>> ranges({8, 0, 1, 2})
    '0-2,8'
    """
    runs = [[cpu for _, cpu in run] for _, run in groupby(enumerate(sorted(cpus)), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def choose(mode: str, facts: CpuFacts) -> Choice:
    """Choose the CPUs for a process: those of its GPU's NUMA node, or without a GPU a share of all nodes.

    >>> facts = CpuFacts(
    ...     mask=parse("2-7"),
    ...     machine=Machine(nodes={0: parse("0-3"), 1: parse("4-7")}),
    ...     gpu=Gpu(pci="0000:1b:00.0", node=0),
    ... ); choose("node", facts)
    Choice(cpus=frozenset({2, 3}), why='GPU 0000:1b:00.0 is on NUMA node 0')
    """
    nothing = _nothing(mode, facts)
    if nothing is not None:
        return Choice(None, nothing)
    return _share_of_nodes(facts) if facts.gpu is None else _near(facts, facts.gpu)


def _nothing(mode: str, facts: CpuFacts) -> str | None:
    nodes = len(facts.machine.nodes)
    if nodes == 0:
        return "the system does not show its NUMA nodes"
    if nodes == 1:
        return "all CPUs are on one NUMA node"
    if facts.gpu is None and facts.gpu_unknown is None and mode == "auto":
        return f"training runs on the CPU; affinity=node divides {nodes} NUMA nodes among the ranks"
    return facts.gpu_unknown


def part(items: Sequence[Cpus], place: int, number: int) -> Cpus:
    """Divide a list of CPU sets into `number` parts, and return the CPUs of the part with the index `place`, from 0.

    If there are fewer CPU sets than parts, several parts get the same CPU set.

    >>> [sorted(part([frozenset({0}), frozenset({1}), frozenset({2})], place, 2)) for place in (0, 1)]
    [[0], [1, 2]]
    """
    first = place * len(items) // number
    return frozenset().union(*items[first : max(first + 1, (place + 1) * len(items) // number)])


def _near(facts: CpuFacts, gpu: Gpu) -> Choice:
    if gpu.node is None:
        return Choice(None, f"the firmware does not report the NUMA node of GPU {gpu.pci}")
    near = facts.machine.nodes.get(gpu.node)
    if near is None:
        return Choice(None, f"GPU {gpu.pci} is on NUMA node {gpu.node}, which has no CPUs")
    cpus = near & facts.mask
    where = f"GPU {gpu.pci} is on NUMA node {gpu.node}"
    return Choice(cpus, where if cpus else f"{where}, whose CPUs are {ranges(near)}")


def _share_of_nodes(facts: CpuFacts) -> Choice:
    nodes = [cpus for _, cpus in sorted(facts.machine.nodes.items())]
    allowed = [cpus & facts.mask for cpus in nodes if cpus & facts.mask]
    if facts.local_world_size == 1:
        unknown = "; without LOCAL_RANK and LOCAL_WORLD_SIZE this rank counts as the machine's only one"
        return Choice(None, f"one rank uses all {len(nodes)} NUMA nodes{unknown if facts.ranks_unknown else ''}")
    if len(allowed) <= 1:
        return Choice(None, f"the process may run on one of {len(nodes)} NUMA nodes only")
    cpus = part(allowed, facts.local_rank, facts.local_world_size)
    return Choice(cpus, f"{len(allowed)} NUMA nodes divided among {facts.local_world_size} ranks")
