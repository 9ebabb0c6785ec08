"""`perf-callbacks scaling` on journals that the test has written. `printed/scaling.txt` has its texts.

`WRITE_SNAPSHOTS=1 python -m pytest tests/commands/test_scaling.py` writes the file anew. Halves and quarters are exact.
"""

import json
from pathlib import Path

import pytest
from fakes import a_run
from journals import a_summary
from snapshots import matches

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


def as_json(capsys, *words):
    assert main(["scaling", *map(str, words), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
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


HALF = {name: seconds / 2 for name, seconds in USUAL.items()}
QUIET, BUSY = [CpuSummary(cpus=2, other_cpus=others, load_average=1.0) for others in (0.02, 1.5)]
CALM, STARVED = [CpuSummary(cpus=2, no_cpu_share=share, other_cpus=0.0, load_average=1.0) for share in (0.0, 0.5)]
SLOW, WAITS = {"data_time": 4.0}, {"backward_time": 1.5}
ONE = ([{}], {})
CASES = {
    "half as efficient": [ONE, ([WAITS] * 2, {})],
    "a slow rank": [ONE, ([WAITS, {"data_time": 1.0625}, WAITS, WAITS], {})],
    "a smaller batch per device": [ONE, ([HALF | {"optimizer_time": 0.125}] * 2, {"samples": 4})],
    "batches that differ": [ONE, *[([{}] * 2, {"samples": samples}) for samples in (4, 12)]],
    "several runs": [
        *[([{"data_time": 0.0625 * place}], {}) for place in range(3)],
        *[([{"data_time": 0.0625 * place + 0.25}] * 2, {}) for place in range(3)],
    ],
    "ranks that share samples": [ONE, ([{}] * 2, {"data_parallel": 1})],
    "ranks that share unknown samples": [ONE, ([{}] * 2, {"data_parallel": None})],
    "tokens": [([{}], {"samples": None, "tokens": 64}), ([{}] * 2, {"samples": None, "tokens": 64})],
    "one number of devices": [ONE],
    "another model": [ONE, ([{}] * 2, {"parameters": 10})],
    "another device": [ONE, ([{}] * 2, {"device": "NVIDIA H200"})],
    "another clock": [ONE, ([{}] * 2, {"timeline": "device"})],
    "longer samples": [([{}], {"tokens": 64}), ([{}] * 2, {"tokens": 128})],
    "few steps": [ONE, ([{}] * 2, {"length": 8})],
    "unknown samples": [ONE, ([{}] * 2, {"samples": None})],
    "unknown stages": [ONE, ([{"data_time": 0.5}] * 2, {"unstaged": "no clock"})],
    "a disturbed run": [
        *[([{}] * ranks, {"load": QUIET}) for ranks in (1, 1, 2, 2)], ([SLOW] * 2, {"load": BUSY}),
    ],
    "ranks that take the CPUs from each other": [
        *[([{}] * ranks, {"load": CALM}) for ranks in (1, 1, 2)], ([SLOW] * 2, {"load": STARVED}),
    ],
}  # fmt: skip
"""By name: jobs, each with the changes of its ranks and of all."""


def test_texts_are_as_their_snapshot(tmp_path, capsys):
    shown = ""
    for name, jobs in CASES.items():
        words = [job(tmp_path / name / str(place), *ranks, **known) for place, (ranks, known) in enumerate(jobs)]
        status = main(["scaling", *map(str, words)])
        printed = capsys.readouterr()
        shown += f"=== {name}, exit status {status}\n{printed.out}{printed.err}\n"
    assert matches(Path(__file__).with_name("printed") / "scaling.txt", shown)


def test_a_run_against_itself_has_an_efficiency_of_1(tmp_path, capsys):
    one = job(tmp_path / "1", {"data_time": tuple(0.01 * (place % 7 + 1) for place in range(STEPS))})
    _, points = as_json(capsys, one, "--baseline", one)
    low, high = points[1]["interval"]
    assert points[1]["efficiency"] == 1.0
    assert low < 1.0 < high
    assert points[1]["grows_most"] is None
