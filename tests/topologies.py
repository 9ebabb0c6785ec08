"""Machines with several NUMA nodes, as their `/sys` and NVML show them.

A source says where the CPU lists were seen. "from memory" means that nobody checked them on such a machine, and
"made up" that the case was. PCI ids are made up everywhere.
"""

from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from perf_callbacks.kernel.process.cpu_sets import parse, ranges


@dataclass(frozen=True, kw_only=True)
class Topology:
    """One machine."""

    name: str
    source: str
    nodes: dict[int, str]
    """CPUs by NUMA node; "" for a node without CPUs."""
    gpus: tuple[int, ...]
    """NUMA node of each GPU, in the order of PCI ids, which is NVML's."""
    mask: str | None = None
    """CPUs that the process may run on. None: all."""
    instances: dict[int, int] | None = None
    """Number of MIG instances by GPU."""

    @property
    def online(self) -> frozenset[int]:
        return frozenset().union(*map(parse, self.nodes.values()))

    @property
    def allowed(self) -> frozenset[int]:
        return self.online if self.mask is None else parse(self.mask)

    def pci(self, gpu: int) -> str:
        return f"0000:{0x0F + 0x0C * gpu:02x}:00.0"

    def uuid(self, gpu: int) -> str:
        return f"{gpu + 10:08x}-0000-4000-8000-{gpu:012x}"

    def instance(self, gpu: int, place: int) -> str:
        return f"{gpu + 10:04x}{place:04x}-1111-4000-8000-{gpu:012x}"

    def lay(self, root: Path) -> Path:
        """Write `/sys` as this machine shows it."""
        files = {"devices/system/node/possible": f"0-{max(self.nodes)}", "devices/system/cpu/online": "unused"}
        for node, cpus in self.nodes.items():
            files[f"devices/system/node/node{node}/cpulist"] = cpus
        for gpu, node in enumerate(self.gpus):
            files[f"bus/pci/devices/{self.pci(gpu)}/numa_node"] = str(node)
        for name, text in files.items():
            path = root / "sys" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return root


TOPOLOGIES = (
    Topology(
        name="DGX A100, NPS4",
        source="GPUs 0 and 1: dask-cuda#1358; others from memory",
        nodes={node: f"{16 * node}-{16 * node + 15},{16 * node + 128}-{16 * node + 143}" for node in range(8)},
        gpus=(3, 3, 1, 1, 7, 7, 5, 5),
    ),
    Topology(
        name="DGX H100",
        source="vllm#13855",
        nodes={0: "0-55,112-167", 1: "56-111,168-223"},
        gpus=(0, 0, 0, 0, 1, 1, 1, 1),
    ),
    Topology(
        name="208 CPUs",
        source="nodes and GPUs as users report them; from memory",
        nodes={0: "0-51,104-155", 1: "52-103,156-207"},
        gpus=(0, 0, 0, 0, 1, 1, 1, 1),
    ),
    Topology(
        name="p5.48xlarge",
        source="from memory",
        nodes={0: "0-47,96-143", 1: "48-95,144-191"},
        gpus=(0, 0, 0, 0, 1, 1, 1, 1),
    ),
    Topology(
        name="GB200 board",
        source="srt-slurm#164",
        nodes={0: "0-71", 1: "72-143", **dict.fromkeys((2, 10, 18, 26), "")},
        gpus=(0, 0, 1, 1),
    ),
    Topology(name="GH200", source="xpu-perf#129", nodes={0: "0-71", **dict.fromkeys(range(1, 9), "")}, gpus=(0,)),
    Topology(
        name="desktop, crossed nodes", source="club-3090#46", nodes={0: "0-7,16-23", 1: "8-15,24-31"}, gpus=(1, 0)
    ),
    Topology(name="VM, node -1", source="made up", nodes={0: "0-15", 1: "16-31"}, gpus=(-1, -1)),
    Topology(
        name="cpuset of 8 of 96", source="made up", nodes={0: "0-23,48-71", 1: "24-47,72-95"}, gpus=(0, 1), mask="20-27"
    ),
    Topology(
        name="MIG, 2 GPUs of 3 and 2",
        source="made up",
        nodes={0: "0-11,24-35", 1: "12-23,36-47"},
        gpus=(0, 1),
        instances={0: 3, 1: 2},
    ),
    Topology(name="GPU on a node without CPUs", source="made up", nodes={0: "0-7", 1: "8-15", 2: ""}, gpus=(2,)),
)

BY_NAME = {topology.name: topology for topology in TOPOLOGIES}


def devices(topology: Topology) -> list[tuple[int, int | None]]:
    """What ranks can own: GPUs, or their MIG instances."""
    parts = topology.instances or {}
    return [
        (gpu, place) for gpu in range(len(topology.gpus)) for place in (range(parts[gpu]) if gpu in parts else [None])
    ]


def name(topology: Topology, gpu: int, place: int | None) -> str:
    """The UUID of a device, as CUDA_VISIBLE_DEVICES and NVML spell it."""
    return f"GPU-{topology.uuid(gpu)}" if place is None else f"MIG-{topology.instance(gpu, place)}"


def properties(topology: Topology, gpu: int, place: int | None, *, pci: bool = True) -> SimpleNamespace:
    """What torch says of a device. Older versions say nothing of PCI."""
    found = SimpleNamespace(uuid=name(topology, gpu, place).partition("-")[2])
    if pci:
        bus = int(topology.pci(gpu).split(":")[1], 16)
        vars(found).update(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0)
    return found


class NVMLError(Exception):
    """NVML's own."""


def nvml(topology: Topology) -> Any:
    """`pynvml` on this machine. It lists what the process may not use as well."""

    def handle(index: int) -> int:
        if index >= len(topology.gpus):
            raise NVMLError("Invalid Argument")
        return index

    def most(gpu: int) -> int:
        if gpu not in (topology.instances or {}):
            raise NVMLError("not supported")
        return 7

    def affinity(gpu: int, words: int) -> list[int]:
        near = parse(topology.nodes.get(topology.gpus[gpu], ranges(topology.online)))
        return [sum(1 << cpu % 64 for cpu in near if cpu // 64 == word) for word in range(words)]

    def pci(gpu: int) -> SimpleNamespace:
        return SimpleNamespace(domain=0, bus=int(topology.pci(gpu).split(":")[1], 16), device=0)

    def uuid(gpu: int) -> str:
        return name(topology, gpu, None)

    module: Any = ModuleType("pynvml")
    module.began = []
    module.__spec__ = ModuleSpec("pynvml", None)  # accelerate looks for it
    vars(module).update(
        NVMLError=NVMLError,
        nvmlInit=lambda: module.began.append(True),
        nvmlShutdown=module.began.pop,
        nvmlDeviceGetCount=lambda: len(topology.gpus),
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetPciInfo=pci,
        nvmlDeviceGetUUID=uuid,
        nvmlDeviceGetMaxMigDeviceCount=most,
        nvmlDeviceGetCpuAffinity=affinity,
    )
    return module
