"""Facts for the choice of CPUs: CPU mask, machine, GPU, and number of ranks on the machine."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.process import nvml, topology
from perf_callbacks.kernel.process.cpu_masks import AFFINITY
from perf_callbacks.kernel.process.cpu_sets import CpuFacts, Gpu, Machine
from perf_callbacks.kernel.process.nvml import Inventory, bare, pci_id

LOCAL_RANKS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun, accelerate launch
    ("LOCAL_RANK", "LOCAL_SIZE"),  # deepspeed
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),  # Open MPI
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH and Intel MPI
)
"""Variables of launchers. Slurm also sets its own for the batch script itself, which is no rank."""


def read(
    mode: str,
    accelerator: str | None = None,
    properties: Callable[[], Any] | None = None,
    *,
    devices: int = 1,
    workers: int = 0,
    local: tuple[int, int] | None = None,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    inventory: Callable[[], Inventory] = nvml.inventory,
) -> CpuFacts | None:
    """Mode "off" needs only the CPU mask. None: this system has no CPU masks.

    `properties` returns torch's device properties, and may start the device; without it, there is no PCI id. `local`
    are local rank and number of ranks here; None: as the environment says. `root` contains `/proc` and `/sys`.
    """
    mask = AFFINITY.found
    if mask is None:
        return None
    if mode == "off":
        return CpuFacts(mask=mask, machine=Machine(nodes={}))
    machine = topology.machine(root)
    local = local or local_ranks(environ)
    rank, size = local or (0, 1)
    gpu = unknown = None
    if devices > 1:
        unknown = f"the process drives {devices} devices, which may be on several NUMA nodes"
    elif properties is not None:
        gpu, unknown = _gpu(properties(), machine, root, inventory)
    elif accelerator is not None:
        unknown = f"the system does not report the NUMA node of {accelerator} devices"
    parent = topology.mask_of(root, os.getppid())
    world = environ.get("WORLD_SIZE", "")
    return CpuFacts(
        mask=mask,
        machine=machine,
        gpu=gpu,
        gpu_unknown=unknown,
        local_rank=rank,
        local_world_size=size,
        ranks_unknown=local is None and world.isdecimal() and int(world) > 1,
        workers=workers,
        bound=parent is not None and mask < parent,
    )


def local_ranks(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """None: one of the two is unknown."""
    for names in LOCAL_RANKS:
        words = [environ.get(name, "") for name in names]
        if all([word.isdecimal() for word in words]) and int(words[0]) < int(words[1]):
            return int(words[0]), int(words[1])
    return None


def local_rank(environ: Mapping[str, str]) -> int:
    """Return the local rank, even if the number of ranks here is unknown; 0 without a launcher."""
    ranks = local_ranks(environ)
    if ranks is not None:
        return ranks[0]
    words = [environ.get(name, "") for name, _ in LOCAL_RANKS]
    return next((int(word) for word in words if word.isdecimal()), 0)


def _gpu(
    properties: Any, machine: Machine, root: Path, inventory: Callable[[], Inventory]
) -> tuple[Gpu | None, str | None]:
    """Return where the GPU is, or why that is unknown.

    Its PCI id counts, or NVML's for its UUID, whatever CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are.
    """
    uuid, pci = bare(str(getattr(properties, "uuid", ""))), None
    if hasattr(properties, "pci_bus_id"):
        pci = pci_id(properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    if pci is None:
        listed = inventory()
        pci = next((gpu.pci for gpu in listed.gpus if gpu.uuid == uuid), None)
        if pci is None:
            return None, f"the PCI id of the GPU is unknown (NVML: {listed.missing or 'does not list it'})"
    return Gpu(pci=pci, node=topology.node(root, pci, machine)), None
