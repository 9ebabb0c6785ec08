"""The CPUs of a rank, chosen by facts alone."""

import dataclasses

from rows import each_row

from perf_callbacks.kernel.process.cpu_sets import CpuFacts, Gpu, Machine, choose, parse, part, ranges

MACHINE = Machine(nodes={0: parse("0-3,8-11"), 1: parse("4-7,12-15")})
GPU = Gpu(pci="0000:1b:00.0", node=1)


ALONE = "without LOCAL_RANK and LOCAL_WORLD_SIZE this rank counts as the machine's only one"


def facts(**changes):
    return dataclasses.replace(CpuFacts(mask=parse("0-15"), machine=MACHINE, gpu=GPU), **changes)


@each_row("text", ["", "0", "0-2", "0,2,4-6", "1-3,100-103"])
def test_cpus_are_read_and_written_as_the_kernel_does(text):
    assert ranges(parse(f"{text}\n")) == text


def chosen(mode, **changes):
    found = choose(mode, facts(**changes))
    return None if found.cpus is None else ranges(found.cpus), found.why


@each_row(
    ("mode", "changes", "cpus", "why"),
    [
        ("auto", {}, "4-7,12-15", "GPU 0000:1b:00.0 is on NUMA node 1"),
        ("node", {"mask": parse("0-5")}, "4-5", "GPU 0000:1b:00.0 is on NUMA node 1"),
        ("node", {"mask": parse("0-3")}, "", "GPU 0000:1b:00.0 is on NUMA node 1, whose CPUs are 4-7,12-15"),
        ("auto", {"gpu": None}, None, "training runs on the CPU; affinity=node divides 2 NUMA nodes among the ranks"),
        ("node", {"gpu": None}, None, "one rank uses all 2 NUMA nodes"),
        (
            "node",
            {"gpu": None, "ranks_unknown": True},
            None,
            f"one rank uses all 2 NUMA nodes; {ALONE}",
        ),
        (
            "node",
            {"gpu": None, "local_rank": 1, "local_world_size": 4},
            "0-3,8-11",
            "2 NUMA nodes divided among 4 ranks",
        ),
        (
            "node",
            {"gpu": None, "local_world_size": 2, "mask": parse("0-3")},
            None,
            "the process may run on one of 2 NUMA nodes only",
        ),
        ("node", {"gpu": None, "gpu_unknown": "no NVML"}, None, "no NVML"),
        (
            "node",
            {"gpu": dataclasses.replace(GPU, node=7)},
            None,
            "GPU 0000:1b:00.0 is on NUMA node 7, which has no CPUs",
        ),
        (
            "node",
            {"gpu": dataclasses.replace(GPU, node=None)},
            None,
            "the firmware does not report the NUMA node of GPU 0000:1b:00.0",
        ),
        ("node", {"machine": Machine(nodes={})}, None, "the system does not show its NUMA nodes"),
        ("node", {"machine": Machine(nodes={0: parse("0-15")})}, None, "all CPUs are on one NUMA node"),
    ],
)
def test_cpus_and_the_reason_for_them(mode, changes, cpus, why):
    assert chosen(mode, **changes) == (cpus, why)


def test_fewer_items_than_parts_are_shared_by_neighbours():
    assert [sorted(part([frozenset({0}), frozenset({1})], place, 5)) for place in range(5)] == [[0]] * 3 + [[1]] * 2
