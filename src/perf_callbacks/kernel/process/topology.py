"""CPUs of the machine by NUMA node, as `/sys` and `/proc` show them.

Files in `/sys` and `/proc` may be missing: on other systems, in sandboxes, and for CPUs that are offline.
"""

from pathlib import Path

from perf_callbacks.kernel.process.cpu_sets import Cpus, Machine, parse
from perf_callbacks.kernel.process.processes import entry, text

NODES = "sys/devices/system/node"
PCI = "sys/bus/pci/devices"
QUOTAS = (
    ("sys/fs/cgroup/cpu.max",),
    ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""Files with a CPU quota and its period in microseconds: first for version 2 of control groups, then for version 1."""


def machine(root: Path) -> Machine:
    """Read the CPUs of the machine."""
    nodes = {int(path.name[4:]): _cpus(path / "cpulist") for path in (root / NODES).glob("node[0-9]*")}
    return Machine(nodes={node: cpus for node, cpus in sorted(nodes.items()) if cpus}, quota=quota(root))


def node(root: Path, pci: str, known: Machine) -> int | None:
    """Return the NUMA node that the firmware names for a PCI device; None if the firmware names no node (-1).

    If the machine has a single node with CPUs, return that node without asking the firmware.
    """
    if len(known.nodes) == 1:
        return next(iter(known.nodes))
    found = text(root / PCI / pci / "numa_node")
    return int(found) if found is not None and found.isdecimal() else None


def mask_of(root: Path, process: int) -> Cpus | None:
    """Return the CPUs that another process may run on."""
    cpus = entry(root / "proc" / str(process) / "status", "Cpus_allowed_list")
    return None if cpus is None else parse(cpus)


def quota(root: Path) -> float | None:
    """Return the CPU quota of the control group in `/sys/fs/cgroup`, in CPUs; None without a limit."""
    for names in QUOTAS:
        words = " ".join([text(root / name) or "" for name in names]).split()
        if len(words) == len(QUOTAS) and words[0].isdecimal() and int(words[1]):  # "max" and -1 are no limit
            return int(words[0]) / int(words[1])
    return None


def _cpus(path: Path) -> Cpus:
    return parse(text(path) or "")
