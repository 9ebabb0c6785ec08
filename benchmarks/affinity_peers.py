"""Which CPUs do other tools give to the ranks of a machine? Their own functions are called on faked machines.

    python benchmarks/affinity_peers.py

The machines are those of `tests/topologies.py`: files as in `/sys`, a `pynvml`, torch's device properties, and a kernel
that gives a process the CPUs that it asks for within its cpuset. No GPU is needed, and no mask of this process changes.
A mask is right if the process was allowed all of its CPUs before, and all of them are on the NUMA node of its GPU.
"""

import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import accelerate
import torch
from accelerate.utils.environment import set_numa_affinity
from topologies import TOPOLOGIES, Topology, devices, name, nvml, properties
from torch.numa.binding import AffinityMode, NumaOptions, _maybe_apply_numa_binding_to_current_process

from perf_callbacks.kernel.process import cpu_facts
from perf_callbacks.kernel.process.cpu_sets import choose, parse

CPUs = frozenset[int]


@dataclass(frozen=True)
class Rank:
    """One rank, and what it owns."""

    place: int
    size: int
    gpu: int
    instance: int | None
    visible: tuple[tuple[int, int | None], ...]
    """What CUDA shows to its launcher and to itself, in this order."""

    def environ(self, topology: Topology) -> dict[str, str]:
        names = ",".join(name(topology, *device) for device in self.visible)
        return {"LOCAL_RANK": str(self.place), "LOCAL_WORLD_SIZE": str(self.size), "CUDA_VISIBLE_DEVICES": names}


@dataclass(frozen=True)
class Job:
    """Ranks of one machine. Their launcher may have given them fewer CPUs than the machine has."""

    name: str
    topology: Topology
    ranks: tuple[Rank, ...]
    by_mask: bool = False
    """True: the process is restricted by a mask, which it may widen; False: by a cpuset."""


Bind = Callable[[Topology, Rank, Path], None]
"""Binds one rank on its machine, whose files are under a directory."""


class Kernel:
    """The masks of one process."""

    def __init__(self, job: Job) -> None:
        self.mask = job.topology.allowed
        self.possible = job.topology.online if job.by_mask else self.mask

    def get(self, _: int) -> set[int]:
        return set(self.mask)

    def set(self, _: int, cpus: Sequence[int]) -> None:
        mask = self.possible.intersection(cpus)
        if not mask:
            raise OSError(22, "Invalid argument")
        self.mask = mask


def jobs() -> list[Job]:
    """Each machine with a rank on each device, and three jobs as users start them."""
    found = []
    for topology in TOPOLOGIES:
        every = tuple(devices(topology))
        if topology.instances:  # CUDA shows one instance to a process
            ranks = [Rank(place, len(every), *device, visible=(device,)) for place, device in enumerate(every)]
        else:
            ranks = [Rank(place, len(every), *device, visible=every) for place, device in enumerate(every)]
        found.append(Job(topology.name, topology, tuple(ranks)))
    big = next(topology for topology in TOPOLOGIES if topology.name == "208 CPUs")
    shuffled = tuple(reversed(devices(big)))
    ranks = [Rank(place, 8, *device, visible=shuffled) for place, device in enumerate(shuffled)]
    found.append(Job("208 CPUs, CUDA_VISIBLE_DEVICES=7,6,…,0", big, tuple(ranks)))
    last = devices(big)[-1]
    found.append(Job("208 CPUs, one rank, CUDA_VISIBLE_DEVICES=7", big, (Rank(0, 1, *last, visible=(last,)),)))
    narrow = replace(big, mask="0-25")
    ranks = [Rank(place, 2, place, None, visible=tuple(devices(big))) for place in (0, 1)]
    found.append(Job("208 CPUs, two ranks under `taskset -c 0-25`", narrow, tuple(ranks), by_mask=True))
    return found


def by_accelerate(_topology: Topology, rank: Rank, _root: Path) -> None:
    set_numa_affinity.cache_clear()
    set_numa_affinity(rank.place)


def by_recipe(_topology: Topology, rank: Rank, _root: Path) -> None:
    """As guides give it: the GPU by local rank, the CPUs from NVML."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(rank.place)
    words = pynvml.nvmlDeviceGetCpuAffinity(handle, (os.cpu_count() + 63) // 64)
    os.sched_setaffinity(0, [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1])


def by_torch(_topology: Topology, rank: Rank, _root: Path) -> None:
    options = NumaOptions(affinity_mode=AffinityMode.NODE)
    _maybe_apply_numa_binding_to_current_process(gpu_index=rank.place, numa_options=options)


class LeftAlone(Exception):  # noqa: N818 it is no error
    """Nothing was done, and the reason was said."""


def by_us(topology: Topology, rank: Rank, root: Path) -> None:
    facts = cpu_facts.read(
        "auto",
        "cuda",
        lambda: properties(topology, rank.gpu, rank.instance),
        root=root,
        environ=rank.environ(topology),
    )
    cpus = choose("auto", facts).cpus
    if not cpus:
        raise LeftAlone
    os.sched_setaffinity(0, cpus)


WAYS: dict[str, Bind] = {
    "accelerate `set_numa_affinity`": by_accelerate,
    "recipe by local rank": by_recipe,
    "torch `node`": by_torch,
    "perf_callbacks `auto`": by_us,
}


def found_by(job: Job, rank: Rank, way: Bind, root: Path) -> str:
    """Bind one rank on its machine, and judge the mask that it has then."""
    kernel, topology = Kernel(job), job.topology

    def opened(path: Any, *more: Any, **options: Any) -> Any:
        return (root / str(path).lstrip("/")).open(*more, **options)

    def shown(index: int) -> Any:
        if index >= len(rank.visible):
            raise AssertionError("Invalid device id")
        return properties(topology, *rank.visible[index])

    with ExitStack() as fakes:
        for target, value in {
            "os.sched_getaffinity": kernel.get,
            "os.sched_setaffinity": kernel.set,
            "os.cpu_count": lambda: len(topology.online),
            "shutil.which": lambda name: name,
            "torch.cuda.is_available": lambda: True,
            "torch.cuda.device_count": lambda: len(rank.visible),
            "torch.cuda.get_device_properties": shown,
        }.items():
            fakes.enter_context(patch(target, value))
        fakes.enter_context(patch("torch.numa.binding.open", opened, create=True))
        fakes.enter_context(patch.dict(sys.modules, {"pynvml": nvml(topology)}))
        try:
            way(topology, rank, root)
        except LeftAlone:
            return "left alone"
        except Exception as error:  # noqa: BLE001 it is what is asked
            return type(error).__name__
    node = topology.gpus[rank.gpu]
    near = parse(topology.nodes.get(node, ""))
    if not kernel.mask <= topology.allowed:
        return "wider than allowed"
    if near and kernel.mask <= near:
        return "right"
    if kernel.mask == topology.allowed:
        return "unchanged"
    return "another node" if near else "guessed"


def cell(job: Job, way: Bind, root: Path) -> str:
    counts = Counter(found_by(job, rank, way, root) for rank in job.ranks)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{outcome}: {number} of {len(job.ranks)}" for outcome, number in counts.items())


def main() -> None:
    logging.disable(logging.CRITICAL)  # torch logs the errors that it raises
    print(f"accelerate {accelerate.__version__}, torch {torch.__version__}\n")
    print(f"| machine and job | {' | '.join(WAYS)} |")
    print("|" + "---|" * (len(WAYS) + 1))
    with tempfile.TemporaryDirectory() as directory:
        for number, job in enumerate(jobs()):
            root = job.topology.lay(Path(directory) / str(number))
            print(f"| {job.name} | {' | '.join(cell(job, way, root) for way in WAYS.values())} |")


if __name__ == "__main__":
    main()
