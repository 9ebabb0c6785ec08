"""Choose CPUs for a rank, near its GPU and within its current CPU mask.

If ranks must not share cores, the rank gets whole cores.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from perf_callbacks.kernel.plural import plural

Cpus = frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Online CPUs of a machine, grouped in three ways: by NUMA node, by socket, and by core.

    Groups without CPUs are left out.
    """

    nodes: Mapping[int, Cpus]
    """CPUs of each NUMA node that has CPUs. Empty: unknown."""
    sockets: tuple[Cpus, ...] = ()
    cores: tuple[Cpus, ...] = ()
    """CPUs (hardware threads) of each core. If the core of a CPU is unknown, the CPU counts as a core of its own."""
    quota: float | None = None
    """CPU time that the control group allows, as a number of CPUs. None: no limit is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """Location of a rank's GPU."""

    pci: str
    node: int | None
    """NUMA node of the GPU. None if the machine has several nodes, and the firmware doesn't know the GPU's node."""
    slot: tuple[int, int] | None = None
    """Index of the GPU among the GPUs of its NUMA node, and the number of these GPUs. None if the index is unknown or
    if ranks share GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuFacts:
    """Facts by which the CPUs of a process are chosen."""

    mask: Cpus
    """CPUs that the process may run on while no fit is bound to CPUs."""
    machine: Machine
    gpu: Gpu | None = None
    gpu_unknown: str | None = None
    """Reason why the location of the accelerator is unknown. None if the location is known, or if training runs on the
    CPU."""
    local_rank: int = 0
    local_world_size: int = 1
    ranks_unknown: bool = False
    """True: there are other ranks, and their number on this machine is unknown."""
    workers: int = 0
    """Number of worker processes of the DataLoaders, as far as known."""
    bound: bool = False
    """True: the CPU mask of the process is smaller than the mask of its parent process."""


@dataclass(frozen=True, slots=True)
class Choice:
    """CPUs chosen for a process, and the reason for the choice."""

    cpus: Cpus | None
    """CPUs within the current mask. Empty: the mask excludes all suitable CPUs. None: there is nothing to choose."""
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
    """Choose the CPUs for a process: the CPUs of its NUMA node or socket, or exclusive cores.

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
    if mode == "exclusive":
        return _exclusive(facts)
    if facts.gpu is not None:
        return _near(facts, facts.gpu, socket=mode == "socket")
    return _share_of_groups(facts, socket=mode == "socket")


def _nothing(mode: str, facts: CpuFacts) -> str | None:
    """Return the reason why there is no choice of CPUs; None if there is a choice."""
    nodes = len(facts.machine.nodes)
    if nodes == 0:
        return "the system does not show its NUMA nodes"
    if nodes == 1:
        return None if mode == "exclusive" else "all CPUs are on one NUMA node"
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


def _near(facts: CpuFacts, gpu: Gpu, *, socket: bool) -> Choice:
    if gpu.node is None:
        return Choice(None, f"the firmware does not report the NUMA node of GPU {gpu.pci}")
    near = facts.machine.nodes.get(gpu.node)
    if near is None:
        return Choice(None, f"GPU {gpu.pci} is on NUMA node {gpu.node}, which has no CPUs")
    if socket:
        near = near.union(*[cpus for cpus in facts.machine.sockets if cpus & near])
    cpus = near & facts.mask
    where = f"GPU {gpu.pci} is on {'the socket of ' if socket else ''}NUMA node {gpu.node}"
    return Choice(cpus, where if cpus else f"{where}, whose CPUs are {ranges(near)}")


def _share_of_groups(facts: CpuFacts, *, socket: bool) -> Choice:
    groups = facts.machine.sockets if socket else [cpus for _, cpus in sorted(facts.machine.nodes.items())]
    allowed = [cpus & facts.mask for cpus in groups if cpus & facts.mask]
    kind = "sockets" if socket else "NUMA nodes"
    if facts.local_world_size == 1:
        return Choice(None, f"one rank uses all {len(groups)} {kind}{_remark(facts)}")
    if len(allowed) <= 1:
        return Choice(None, f"the process may run on one of {len(groups)} {kind} only")
    cpus = part(allowed, facts.local_rank, facts.local_world_size)
    return Choice(cpus, f"{len(allowed)} {kind} divided among {facts.local_world_size} ranks")


def _exclusive(facts: CpuFacts) -> Choice:
    """Divide whole cores among the devices at a NUMA node, or among the ranks of the machine."""
    gpu = facts.gpu
    if facts.bound:
        return Choice(facts.mask, "the launcher gave this rank only a part of its own CPUs")
    base, where, slot = facts.mask, "", None
    if gpu is not None:
        near = _near(facts, gpu, socket=False)
        if not near.cpus:
            return near
        base, where, slot = near.cpus, f" of NUMA node {gpu.node}", gpu.slot
    place, number = slot or (facts.local_rank, facts.local_world_size)
    cores = [core & base for core in _cores(facts.machine, base)]
    found, among = plural(len(cores), "core") + where, plural(number, "GPU" if slot else "rank")
    if len(cores) < number:
        return Choice(None, f"{found} can't be divided among {among}")
    return Choice(part(cores, place, number), f"{found} divided among {among}{'' if slot else _remark(facts)}")


def _cores(machine: Machine, cpus: Cpus) -> list[Cpus]:
    """Return the cores that contain any of these CPUs, sorted by their lowest CPU."""
    known = {core for core in machine.cores if core & cpus}
    alone = cpus.difference(*known)
    return sorted([*known, *[frozenset({cpu}) for cpu in alone]], key=min)


def _remark(facts: CpuFacts) -> str:
    if not facts.ranks_unknown:
        return ""
    return "; without LOCAL_RANK and LOCAL_WORLD_SIZE this rank counts as the machine's only one"
