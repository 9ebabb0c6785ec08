"""CPUs of the machine by NUMA node, by `/sys` and `/proc`, where they show them: not in some sandboxes."""

from pathlib import Path

from perf_callbacks.kernel.process.cpu_sets import Cpus, Machine, parse
from perf_callbacks.kernel.process.processes import entry, text

NODES = "sys/devices/system/node"
PCI = "sys/bus/pci/devices"
QUOTAS = (
    ("sys/fs/cgroup/cpu.max",),
    ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""A CPU quota and its period in microseconds, in version 2 of control groups, and in version 1."""


def machine(root: Path) -> Machine:
    nodes = {int(path.name[4:]): _cpus(path / "cpulist") for path in (root / NODES).glob("node[0-9]*")}
    return Machine(nodes={node: cpus for node, cpus in sorted(nodes.items()) if cpus}, quota=quota(root))


def node(root: Path, pci: str, cpus: Machine) -> int | None:
    """Return the NUMA node of a PCI device, if the machine has one node, or the firmware names one (-1: none)."""
    if len(cpus.nodes) == 1:
        return next(iter(cpus.nodes))
    number = text(root / PCI / pci / "numa_node")
    return int(number) if number is not None and number.isdecimal() else None


def mask_of(root: Path, process: int) -> Cpus | None:
    cpus = entry(root / "proc" / str(process) / "status", "Cpus_allowed_list")
    return None if cpus is None else parse(cpus)


def quota(root: Path) -> float | None:
    """Return the quota of the control group in `/sys/fs/cgroup`, in CPUs."""
    for names in QUOTAS:
        words = " ".join([text(root / name) or "" for name in names]).split()
        if len(words) == len(QUOTAS) and words[0].isdecimal() and int(words[1]):  # "max" and -1 are no limit
            return int(words[0]) / int(words[1])
    return None


def _cpus(path: Path) -> Cpus:
    return parse(text(path) or "")
