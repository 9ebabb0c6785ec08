"""The CPUs of each rank on machines of many kinds, as their `/sys` and NVML show them."""

import importlib
import sys
from types import SimpleNamespace

import pytest
from rows import each_row
from topologies import BY_NAME, TOPOLOGIES, devices, name, nvml, properties

from perf_callbacks.kernel.process import cpu_facts
from perf_callbacks.kernel.process.cpu_sets import choose, parse, ranges
from perf_callbacks.kernel.process.nvml import Inventory, inventory

NODE = {
    "DGX A100, NPS4": [
        *["48-63,176-191"] * 2,
        *["16-31,144-159"] * 2,
        *["112-127,240-255"] * 2,
        *["80-95,208-223"] * 2,
    ],
    "DGX H100": [*["0-55,112-167"] * 4, *["56-111,168-223"] * 4],
    "208 CPUs": [*["0-51,104-155"] * 4, *["52-103,156-207"] * 4],
    "p5.48xlarge": [*["0-47,96-143"] * 4, *["48-95,144-191"] * 4],
    "GB200 board": [*["0-71"] * 2, *["72-143"] * 2],
    "GH200": [None],
    "desktop, crossed nodes": ["8-15,24-31", "0-7,16-23"],
    "VM, node -1": [None, None],
    "cpuset of 8 of 96": ["20-23", "24-27"],
    "MIG, 2 GPUs of 3 and 2": [*["0-11,24-35"] * 3, *["12-23,36-47"] * 2],
    "GPU on a node without CPUs": [None],
}


@pytest.fixture
def on(monkeypatch, tmp_path):
    """Facts of a rank on a machine, of which it has one device."""

    def of(topology, mode, gpu, place, *, rank=0, size=1, pci=True, **environ):
        root = tmp_path / topology.name
        if not root.exists():
            topology.lay(root)
        monkeypatch.setattr(cpu_facts, "AFFINITY", SimpleNamespace(found=topology.allowed))
        monkeypatch.setitem(sys.modules, "pynvml", nvml(topology))
        variables = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size), **environ}
        facts = cpu_facts.read(
            mode, "cuda", lambda: properties(topology, gpu, place, pci=pci), root=root, environ=variables
        )
        assert sys.modules["pynvml"].began == []
        return facts

    return of


def chosen(facts, mode):
    cpus = choose(mode, facts).cpus
    return None if cpus is None else ranges(cpus)


@each_row(("topology", "mode"), [(topology, mode) for topology in TOPOLOGIES for mode in ("auto", "node")])
def test_each_rank_runs_near_its_gpu(on, topology, mode):
    found = []
    every = devices(topology)
    for rank, (gpu, place) in enumerate(every):
        facts = on(
            topology,
            mode,
            gpu,
            place,
            rank=rank,
            size=len(every),
            CUDA_VISIBLE_DEVICES=name(topology, gpu, place) if topology.instances else "",
        )
        found.append(chosen(facts, mode))
    assert found == NODE[topology.name]


@each_row("topology", TOPOLOGIES)
def test_a_gpu_that_tells_its_uuid_alone_is_found_by_nvml(on, topology):
    found = [chosen(on(topology, "node", gpu, place, pci=False), "node") for gpu, place in devices(topology)]
    assert found == ([None] * len(found) if topology.instances else NODE[topology.name])


@pytest.mark.parametrize("pci", [True, False])
def test_which_devices_cuda_shows_and_in_which_order_does_not_matter(on, pci):
    """Each rank's first device is another one of the machine, by index, UUID or the prefix of one."""
    topology = BY_NAME["208 CPUs"]
    found = []
    for rank, gpu in enumerate((5, 2, 7, 0, 1, 6, 3, 4)):
        uuid = name(topology, gpu, None)
        visible = [f"{gpu}", uuid, uuid[:12], f"{gpu},{rank}"][rank % 4]
        order = ["PCI_BUS_ID", "FASTEST_FIRST"][rank % 2]
        facts = on(
            topology,
            "node",
            gpu,
            None,
            pci=pci,
            rank=rank,
            size=8,
            CUDA_VISIBLE_DEVICES=visible,
            CUDA_DEVICE_ORDER=order,
        )
        found.append((gpu, chosen(facts, "node")))
    assert [cpus for _, cpus in sorted(found)] == NODE["208 CPUs"]


def test_a_device_is_asked_where_it_is_only_if_it_may_know(tmp_path, monkeypatch):
    def no(*_):
        raise AssertionError("nobody may start CUDA")

    monkeypatch.setattr(cpu_facts, "AFFINITY", SimpleNamespace(found=parse("0-31")))
    root = BY_NAME["desktop, crossed nodes"].lay(tmp_path)
    sources = {"root": root, "environ": {}, "inventory": no}
    assert cpu_facts.read("auto", None, None, **sources).gpu is None
    assert choose("auto", cpu_facts.read("auto", "xpu", None, **sources)).why == (
        "the system does not report the NUMA node of xpu devices"
    )
    assert choose("auto", cpu_facts.read("auto", "cuda", no, devices=2, **sources)).why == (
        "the process drives 2 devices, which may be on several NUMA nodes"
    )


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        (Inventory(missing="NVMLError_LibraryNotFound: no"), "NVML: NVMLError_LibraryNotFound: no"),
        (Inventory(), "NVML: does not list it"),
    ],
)
def test_a_gpu_whose_place_is_unknown_says_why(tmp_path, monkeypatch, listed, why):
    topology = BY_NAME["208 CPUs"]
    monkeypatch.setattr(cpu_facts, "AFFINITY", SimpleNamespace(found=topology.allowed))
    sources = {"root": topology.lay(tmp_path), "environ": {}, "inventory": lambda: listed}
    facts = cpu_facts.read("auto", "cuda", lambda: properties(topology, 0, None, pci=False), **sources)
    assert choose("auto", facts).why == f"the PCI id of the GPU is unknown ({why})"


def test_without_sys_nothing_is_chosen(tmp_path):
    facts = cpu_facts.read("node", root=tmp_path, environ={})
    assert choose("node", facts).why == "the system does not show its NUMA nodes"


def test_a_system_without_masks_has_no_facts(monkeypatch):
    monkeypatch.setattr(cpu_facts, "AFFINITY", SimpleNamespace(found=None))
    assert cpu_facts.read("auto") is None


@pytest.mark.parametrize(
    ("environ", "local", "unknown"),
    [
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, (1, 4), False),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, (2, 3), False),
        ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}, (0, 2), False),
        ({"LOCAL_RANK": "1", "LOCAL_SIZE": "2", "WORLD_SIZE": "4"}, (1, 2), False),
        ({"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"}, (0, 1), False),
        ({"LOCAL_RANK": "first", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4"}, (0, 1), True),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (0, 1), True),
        ({"WORLD_SIZE": "all"}, (0, 1), False),
        ({}, (0, 1), False),
    ],
)
def test_the_place_of_a_rank_on_its_machine_is_told_by_its_launcher(tmp_path, environ, local, unknown):
    facts = cpu_facts.read("node", root=tmp_path, environ=environ)
    assert ((facts.local_rank, facts.local_world_size), facts.ranks_unknown) == (local, unknown)


@each_row(
    ("environ", "rank"),
    [
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, 1),
        ({"LOCAL_RANK": "1"}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 2),
        ({"LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 2),
        ({"MPI_LOCALRANKID": "3"}, 3),
        ({"LOCAL_RANK": "first"}, 0),
        ({"SLURM_LOCALID": "1"}, 0),
        ({}, 0),
    ],
)
def test_the_rank_is_known_even_if_their_number_is_not(environ, rank):
    assert cpu_facts.local_rank(environ) == rank


def test_an_integration_may_know_better(tmp_path):
    facts = cpu_facts.read("node", local=(1, 2), root=tmp_path, environ={"WORLD_SIZE": "2"})
    assert (facts.local_rank, facts.local_world_size, facts.ranks_unknown) == (1, 2, False)


@pytest.mark.parametrize(
    ("parent", "bound"), [("0-3", False), (None, False), ("0", False), ("0-7", True)]
)  # "0": a parent that was bound later
def test_a_rank_with_fewer_cpus_than_its_parent_was_bound(tmp_path, monkeypatch, parent, bound):
    monkeypatch.setattr(cpu_facts, "AFFINITY", SimpleNamespace(found=parse("0-3")))
    if parent is not None:
        status = tmp_path / "proc" / str(cpu_facts.os.getppid()) / "status"
        status.parent.mkdir(parents=True)
        status.write_text(f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{parent}\n")
    assert cpu_facts.read("node", root=tmp_path, environ={}).bound is bound


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "250000 100000"}, 2.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
        ({"cpu.max": "much"}, None),
    ],
)
def test_a_quota_is_read_from_the_control_group(tmp_path, files, quota):
    for file, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cpu_facts.read("node", root=tmp_path, environ={}).machine.quota == quota


def test_nvml_that_is_missing_or_fails_lists_nothing(monkeypatch):
    fake = nvml(BY_NAME["208 CPUs"])
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert len(inventory().gpus) == 8
    fake.nvmlDeviceGetCount = lambda: 1 / 0
    assert inventory().missing == "ZeroDivisionError: division by zero"
    assert fake.began == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert inventory().gpus == ()


def test_a_gpu_that_nvml_lost_is_left_out(monkeypatch):
    fake = nvml(BY_NAME["208 CPUs"])
    pci = fake.nvmlDeviceGetPciInfo

    def lost(gpu):
        if gpu == 2:
            raise fake.NVMLError("GPU is lost")
        return pci(gpu)

    fake.nvmlDeviceGetPciInfo = lost
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert len(inventory().gpus) == 7


def test_the_installed_nvml_has_the_names_of_the_fake():
    faked = {name for name in vars(nvml(BY_NAME["GH200"])) if name.startswith(("nvml", "NVML"))}
    assert faked <= {*dir(importlib.import_module("pynvml"))}
