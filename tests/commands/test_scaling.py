"""`perf-callbacks scaling` on journals that the test has written. Times in halves, quarters and so on are exact."""

import json

import pytest
from fakes import a_run
from journals import a_summary

from perf_callbacks.commands import main
from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.fit_records import Steps
from perf_callbacks.kernel.records.summary_parts import CpuSummary

STEPS = 64

USUAL = {"data_time": 0.0625, "forward_time": 0.25, "backward_time": 0.5, "optimizer_time": 0.125, "other_time": 0.0625}
"""A step of one second."""


def job(directory, *ranks, samples=8, tokens=None, length=STEPS, load=None, **run):
    """Write a run: for each rank its stages that differ from the usual, a number or a column."""
    folder = directory / "perf_callbacks"
    folder.mkdir(parents=True)
    for rank, changes in enumerate(ranks):
        stages = {
            name: value if isinstance(value, tuple) else (value,) * length for name, value in (USUAL | changes).items()
        }
        block = Steps(
            step=tuple(range(1, length + 1)),
            step_time=tuple(map(sum, zip(*stages.values(), strict=True))),
            samples=(samples,) * length,
            tokens=() if tokens is None else (tokens,) * length,
            **stages,
        )
        opening = a_run(**{"rank": rank, "world_size": len(ranks), "data_parallel": len(ranks), "parameters": 9} | run)
        entries = [opening, block, a_summary(cpu=load)]
        lines = [encode(Entry(float(place), one)) for place, one in enumerate(entries)]
        (folder / f"rank{rank}.jsonl").write_text("\n".join(lines) + "\n")
    return directory


def scaling(capsys, *words, status=0):
    assert main(["scaling", *map(str, words)]) == status
    printed = capsys.readouterr()
    return printed.out if status == 0 else printed.err


def as_json(capsys, *words):
    found = json.loads(scaling(capsys, *words, "--json"))
    return found, {point["devices"]: point for point in found["points"]}


def test_jobs_of_1_2_and_4_ranks_equal_hand_computation(tmp_path, capsys):
    one = job(tmp_path / "1", {})
    two = job(tmp_path / "2", *[{"backward_time": 0.75}] * 2)
    four = job(tmp_path / "4", *[{"backward_time": 1.0, "communication_time": 0.125}] * 4)
    found, points = as_json(capsys, four, one, two)
    assert (found["unit"], found["scaling"], found["baseline"]) == ("samples", "weak", {"devices": [1], "per_step": 8})
    figures = [(point["per_second"], point["per_device"], point["efficiency"]) for point in points.values()]
    assert figures == [
        pytest.approx(row) for row in [(8, 8, 1), (16 / 1.25, 8 / 1.25, 1 / 1.25), (32 / 1.625, 8 / 1.625, 1 / 1.625)]
    ]
    assert [point["interval"] for point in points.values()] == [
        None,
        pytest.approx([0.8, 0.8]),
        pytest.approx([1 / 1.625] * 2),
    ]
    assert [point["grows_most"] for point in points.values()] == [None, "backward_time", "backward_time"]
    largest = points[4]["growth"][0]
    assert (largest["seconds"], largest["share"]) == (pytest.approx(0.5), pytest.approx(0.5 / 0.625))
    assert points[4]["growth"][1]["seconds"] == pytest.approx(0.125)


def test_text(tmp_path, capsys):
    one = job(tmp_path / "1", {})
    two = job(tmp_path / "2", *[{"backward_time": 1.5}] * 2)
    assert scaling(capsys, one, two).splitlines() == [
        "Not good: 2 devices do the work of 1 in the baseline (1 device). The efficiency",
        "  is 0.500; 0.8 or more is good.",
        "Backward grows most: with 2 devices, a step spends 1.00 s more on it (1.00 s to",
        "  1.00 s), 100.0% of the lost time. In the backward, ranks also wait for each",
        "  other and sum up gradients.",
        "One run per number of devices: the intervals cover what varies within the runs,",
        "  not what differs between runs. For that, give several runs of each.",
        "  devices  runs  samples/s  per device  efficiency, 95 %     grows most",
        "        1     1       8.00        8.00  1.000                —",
        "        2     1       8.00        4.00  0.500 (0.500-0.500)  backward 100%",
        "efficiency",
        "  1  ################################|########  1.000",
        "  2  ####################............|........  0.500",
    ]


@pytest.mark.parametrize(
    "part",
    ["data_time", "forward_time", "backward_time", "optimizer_time", "communication_time", "gc_time", "other_time"],
)
@pytest.mark.parametrize("slow", [(0, 1, 2, 3), (2,)])
def test_the_part_that_grows_is_named(tmp_path, capsys, part, slow):
    """Ranks that are not slow wait in the backward. In the backward and in collectives, all ranks take as long."""
    more = USUAL.get(part, 0.0) + 0.25
    waiting = {"backward_time": USUAL["backward_time"] + 0.25}
    if part in {"backward_time", "communication_time"}:
        waiting = {part: more}
    ranks = [{part: more} if rank in slow else waiting for rank in range(4)]
    found = as_json(capsys, job(tmp_path / "1", {}), job(tmp_path / "4", *ranks))[1][4]
    assert found["grows_most"] == part
    largest = found["growth"][0]
    assert (largest["seconds"], largest["share"]) == (pytest.approx(0.25), pytest.approx(1.0))
    uneven = len(slow) == 1 and "backward_time" in waiting and part != "backward_time"
    assert largest["excess"] == pytest.approx(0.1875 if uneven else 0.0)
    if uneven:
        assert found["slowest_rank"] == {"rank": 2, "share_of_steps": 1.0}


def test_with_a_smaller_batch_per_device_work_per_second_is_compared(tmp_path, capsys):
    half = {name: seconds / 2 for name, seconds in USUAL.items()}
    two = job(tmp_path / "2", *[half | {"optimizer_time": 0.125}] * 2, samples=4)
    found, points = as_json(capsys, job(tmp_path / "1", {}), two)
    assert found["scaling"] == "strong"
    assert points[2]["efficiency"] == pytest.approx(1 / 1.125)
    assert [(one["part"], one["seconds"]) for one in points[2]["growth"][:1]] == [
        ("optimizer_time", pytest.approx(0.125))
    ]
    told = " ".join(scaling(capsys, tmp_path / "1", two).split())
    assert "The batch per device differs (strong scaling): 8 on 1 device, 4 on 2 devices, in samples per step." in told


def test_several_runs_of_a_count_are_one_point(tmp_path, capsys):
    ones = [job(tmp_path / f"1-{place}", {"data_time": 0.0625 * place}) for place in range(3)]
    twos = [job(tmp_path / f"2-{place}", *[{"data_time": 0.0625 * place + 0.25}] * 2) for place in range(3)]
    points = as_json(capsys, *ones, *twos)[1]
    assert [points[count]["runs"] for count in (1, 2)] == [3, 3]
    low, high = points[2]["interval"]
    assert low < points[2]["efficiency"] < high
    assert points[2]["grows_most"] == "data_time"
    assert "One run per number" not in scaling(capsys, *ones, *twos)


def test_ranks_that_share_samples_count_once(tmp_path, capsys):
    shared = job(tmp_path / "2", {}, {}, data_parallel=1)
    assert as_json(capsys, job(tmp_path / "1", {}), shared)[1][2]["efficiency"] == pytest.approx(0.5)
    unknown = job(tmp_path / "u", {}, {}, data_parallel=None)
    assert "the samples and tokens of a run, or the ranks that share them, are unknown" in scaling(
        capsys, tmp_path / "1", unknown, status=2
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"parameters": 10}, "Not decided: the runs are not alike: parameters 9 -> 10."),
        ({"device": "NVIDIA H200"}, "Not decided: the runs are not alike: device cpu -> NVIDIA H200."),
        ({"timeline": "device"}, "Not decided: the runs are not alike: timeline host -> device."),
        ({"tokens": 128}, "Not decided: the runs are not alike: tokens per sample 8 -> 16."),
        ({"length": 8}, "Not decided: one of the runs has fewer than ten measured steps."),
        ({"samples": None}, "Not decided: the samples and tokens of a run, or the ranks that share them, are unknown."),
    ],
)
def test_runs_that_are_not_alike_are_refused(tmp_path, capsys, changes, told):
    one = job(tmp_path / "1", {}, tokens=64 if "samples" not in changes else None)
    two = job(tmp_path / "2", {}, {}, **({"tokens": 64} if "samples" not in changes else {}) | changes)
    assert told in scaling(capsys, one, two, status=2)


def test_without_stages_no_part_is_named(tmp_path, capsys):
    two = job(tmp_path / "2", *[{"data_time": 0.5}] * 2, unstaged="no clock")
    assert "the stages of a run were not timed" in " ".join(scaling(capsys, job(tmp_path / "1", {}), two).split())


def test_disturbed_runs_are_left_out_and_the_load_is_shown(tmp_path, capsys):
    quiet, busy = [CpuSummary(cpus=2, other_cpus=others, load_average=1.0) for others in (0.02, 1.5)]
    ones = [job(tmp_path / f"1-{place}", {}, load=quiet) for place in range(2)]
    twos = [job(tmp_path / f"2-{place}", {}, {}, load=quiet) for place in range(2)]
    slow = job(tmp_path / "slow", *[{"data_time": 4.0}] * 2, load=busy)
    points = as_json(capsys, *ones, *twos, slow)[1]
    assert (points[2]["efficiency"], points[2]["left_out"]) == (1.0, 1)
    told = " ".join(scaling(capsys, *ones, *twos, slow).split())
    assert "1 runs were left out" not in told
    assert "One run was left out, because the machine was busy." in told
    assert "2 devices: other programs used 0.0 to 1.5 of 2 CPUs" in told


def test_ranks_that_take_the_cpus_from_each_other_belong_to_the_scaling(tmp_path, capsys):
    waits = [CpuSummary(cpus=2, no_cpu_share=share, other_cpus=0.0, load_average=1.0) for share in (0.0, 0.5)]
    ones = [job(tmp_path / f"1-{place}", {}, load=waits[0]) for place in range(2)]
    twos = [
        job(tmp_path / "2-0", {}, {}, load=waits[0]),
        job(tmp_path / "2-1", *[{"data_time": 4.0}] * 2, load=waits[1]),
    ]
    point = as_json(capsys, *ones, *twos)[1][2]
    assert point["left_out"] == 0
    assert point["efficiency"] < 0.9
