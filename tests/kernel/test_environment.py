"""The machine and the interpreter, read once."""

import gc
import os
import sysconfig

import pytest
import torch
from collector import FakeGc, put

from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.process import processes
from perf_callbacks.kernel.process.collector import Lease
from perf_callbacks.kernel.process.device import Xpu


def lay(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       4000 kB\nMemAvailable:   3000 kB\n"}
V2 = {"sys/fs/cgroup/memory.max": "2000000\n", "sys/fs/cgroup/memory.current": "500000\n"}
V1 = {
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1900000\n",
}


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, None),
        (MEMINFO, 3_072_000),
        ({"proc/meminfo": "MemAvailable: plenty\n"}, None),
        ({"proc/meminfo": "MemAvailable:\n"}, None),
        (MEMINFO | V2, 1_500_000),
        (MEMINFO | V1, 100_000),
        (MEMINFO | V2 | {"sys/fs/cgroup/memory.max": "max\n"}, 3_072_000),
        (V2 | {"sys/fs/cgroup/memory.current": "2500000\n"}, 0),
    ],
)
def test_memory_is_the_rest_that_machine_and_control_group_leave(tmp_path, files, available):
    assert environment.read(root=lay(tmp_path, files)).memory_available == available


def test_the_interpreter_is_as_it_says_itself():
    facts = environment.read(device=Xpu(torch.device("xpu")))
    assert (facts.gc_enabled, facts.gc_thresholds) == (gc.isenabled(), gc.get_threshold())
    assert (facts.accelerator, facts.pinned_copies) == ("xpu", True)
    assert 1 <= facts.cpus <= os.cpu_count()


@pytest.mark.parametrize(
    "case",
    [
        ((8, None), "", "max", 8, 1),
        ((8, 8), "4", "max", 2, 4),  # a mask that all ranks share is divided
        ((2, 8), "4", "max", 2, 1),  # a mask of the rank's own is not
        ((4, 8), "4", "max", 2, 2),  # two ranks share it, such as those of a NUMA node
        ((8, 8), "16", "max", 1, 16),  # more ranks than CPUs
        ((1, 8), "8", "max", 1, 1),
        ((8, 8), "", "250000", 2, 1),
        ((8, 8), "2", "600000", 3, 2),
        ((8, 8), "", "50000", 1, 1),
    ],
)
def test_cpus_are_the_part_of_a_process_among_all_of_the_job(tmp_path, monkeypatch, case):
    (mask, parent), ranks, quota, cpus, sharing = case
    files = {"sys/fs/cgroup/cpu.max": f"{quota} 100000"}
    if parent is not None:
        files[f"proc/{os.getppid()}/status"] = f"Name:\tpython\nCpus_allowed_list:\t0-{parent - 1}\n"
    monkeypatch.setattr(processes, "cpu_mask", lambda: frozenset(range(mask)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    facts = environment.read(root=lay(tmp_path, files))
    assert (facts.cpus, facts.processes_on_cpus) == (cpus, sharing)


@pytest.mark.parametrize(("threshold", "generational"), [((700, 10, 10), True), ((2000, 10, 0), False)])
def test_the_thresholds_tell_an_incremental_collector(monkeypatch, threshold, generational):
    put(monkeypatch, FakeGc(threshold=threshold))
    assert environment.read().gc_generational is generational


def test_a_free_threaded_interpreter_has_no_young_collections(monkeypatch):
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    assert not environment.generational()


def test_the_environment_is_as_before_a_fit_held_the_collector(monkeypatch):
    fake = put(monkeypatch, FakeGc())
    lease = Lease(fake.owner)
    assert lease.turn_off()
    lease.freeze()
    facts = environment.read(count_frozen=True)
    assert (facts.gc_enabled, facts.gc_frozen, facts.gc_thresholds) == (True, 0, (700, 10, 10))
    assert environment.read().gc_frozen is None
    assert not fake.automatic
    lease.let_go()
