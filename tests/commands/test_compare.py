"""`perf-callbacks compare` on journals that the test has written. `printed/compare.txt` has its texts.

`WRITE_SNAPSHOTS=1 python -m pytest tests/commands/test_compare.py` writes the file anew.
"""

import json
import math
import random
from dataclasses import fields, replace
from pathlib import Path

import pytest
from fakes import a_run
from snapshots import matches
from summaries import a_summary_of

from perf_callbacks.commands import main
from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.fit_records import Checklist, Steps
from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.kernel.records.summary_parts import CpuSummary

SUMMARY = a_summary_of(
    run_id="a1", attempt=1, step=100, steps=100, included_steps=100, included_seconds=10.0, stage_seconds={},
    samples=None, tokens=None, included_samples=None, included_tokens=None, included_useful_tokens=None,
    total_samples=None, total_tokens=None, model_flops=10**13, hardware_flops=12 * 10**12, flops_seconds=10.0,
    flops_steps=100, flops_source="counted", flops_dtype="bfloat16", peak_flops_per_second=10e12,
    peak_source="the table",
)  # fmt: skip
COLUMNS = {field.name for field in fields(Steps)} - {"step"}


def around(seconds, *, length=100, seed=0):
    rng = random.Random(seed)
    return [seconds * (1 + 0.02 * rng.random()) for _ in range(length)]


def spiky(seconds, seed):
    rng = random.Random(seed)
    return [time * (50 if rng.random() < 0.02 else 1) for time in around(seconds, length=400, seed=seed)]


def run(times, *records, rank=0, attempts=(), **known):
    """The lines of a rank's journal; a number of seconds stands for a hundred steps, one value for a whole column."""
    times = around(times) if isinstance(times, float) else times
    columns = {name: known.pop(name) for name in [*known] if name in COLUMNS}
    whole = {name: value if isinstance(value, tuple) else (value,) * len(times) for name, value in columns.items()}
    block = Steps(step=tuple(range(1, len(times) + 1)), step_time=tuple(times), **whole)
    lines = [a_run(rank=rank, **known), block, *records]
    return "".join([encode(Entry(float(place), line)) + "\n" for place, line in enumerate(lines)]) + "".join(attempts)


def write(directory, *ranks):
    folder = directory / "perf_callbacks"
    folder.mkdir(parents=True)
    for rank, text in enumerate(ranks):
        (folder / f"rank{rank}.jsonl").write_text(text)
    return str(directory)


def written(directory, a, b):
    """The words for these runs: two runs, or several on each side. A run of several ranks is a tuple."""
    sides = []
    for name, side in (("a", a), ("b", b)):
        sides.append([
            write(directory / f"{name}{place}", *(ranks if isinstance(ranks, tuple) else (ranks,)))
            for place, ranks in enumerate(side if isinstance(side, list) else [side])
        ])  # fmt: skip
    if isinstance(a, list) or isinstance(b, list):
        return ["--base", *sides[0], "--new", *sides[1]]
    return [*sides[0], *sides[1]]


def several(seconds, *factors, cpu=None, **known):
    """Runs with these step times, beside these loads."""
    loads = cpu or [None] * len(factors)
    return [
        run(around(seconds * factor, seed=place), replace(SUMMARY, cpu=load), samples=8, run_id=f"r{place}", **known)
        for place, (factor, load) in enumerate(zip(factors, loads, strict=True))
    ]


def beside(load, seconds, **known):
    return run(seconds, replace(SUMMARY, cpu=load), **{"samples": 8} | known)


def by_convention(**changed):
    return run(0.1, replace(SUMMARY, flops=replace(SUMMARY.flops, **changed)), samples=8, model_flops=10**11)


def memory(**sizes):
    return run(0.1, Memory(step=2, device="cpu", **sizes), samples=8)


WAITS = [time + 0.2 * (place % 10 == 0) for place, time in enumerate(around(0.1, length=400, seed=1))]
SPREAD, WIDE = (0.98, 1.0, 1.02, 0.99, 1.01), (0.8, 1.0, 1.2, 0.9, 1.1)
QUIET = CpuSummary(cpus=2, no_cpu_share=0.001, other_cpus=0.02, idle_cpus=0.97, load_average=1.0)
BUSY = CpuSummary(cpus=2, no_cpu_share=0.4, other_cpus=1.4, idle_cpus=0.0, load_average=3.9)
LOADS = [QUIET, BUSY, QUIET, QUIET, BUSY]
AGAIN = run([0.1] * 40, attempt=2, step=20, started_unix=86400.0)
TODAY = run([0.1] * 40, run_id="new", started_unix=86400.0)
PLAIN = run([0.1] * 40)
WORKED = {"samples": 8, "forward_time": 0.04, "model_flops": 10**11}
NEWER = {"versions": {"perf_callbacks": "1.0", "torch": "2.9"}, "config": {"gc": "off"}}
CASES = {
    "slower": (
        run(0.1, SUMMARY, **WORKED), run(0.12, Checklist(item="gc", status="applied"), SUMMARY, **WORKED, **NEWER),
    ),
    "more long steps": (run(around(0.1, length=400), samples=8), run(WAITS, samples=8)),
    "quick steps decide": (run(spiky(0.1, 0), samples=8), run(spiky(0.12, 1), samples=8)),
    "more throughput with slower quick steps": (
        run([*[0.1] * 3, 0.9] * 40, samples=8), run([0.2] * 160, samples=8),
    ),
    "chance": (run([0.1, 0.3] * 5), run([0.1, 0.1, 0.4, 0.1, 0.4, 0.1, 0.3, 0.3, 0.4, 0.4])),
    "below the threshold": (run(0.1), run(0.103)),
    "tokens": (
        run(around(0.1, length=200), samples=8, tokens=800), run(around(0.15, length=200), samples=8, tokens=860),
    ),
    "another source of FLOPs": (by_convention(), by_convention(source="closed form")),
    "a lower bound": (by_convention(), by_convention(lower_bound=True)),
    "another format": (by_convention(), by_convention(dtype="float32")),
    "another peak": (by_convention(), by_convention(peak_flops_per_second=11e12)),
    "a measured peak": (by_convention(), by_convention(peak_measured=True)),
    "another clock": (run(0.1, samples=8), run(0.1, samples=8, timeline="device")),
    "no summary": (by_convention(), run(0.1, samples=8, model_flops=10**11)),
    "more memory": (memory(peak_gb=2.0), memory(peak_gb=3.0)),
    "no memory afterwards": (memory(optimizer_gb=2.0), memory(optimizer_gb=0.0)),
    "no memory before": (memory(optimizer_gb=0.0), memory(optimizer_gb=2.0)),
    "memory unknown before": (memory(), memory(optimizer_gb=2.0)),
    "memory below zero": (memory(peak_gb=-1.0, weights_gb=1.0), memory(peak_gb=2.0, weights_gb=2.0)),
    "memory of no machine": (memory(peak_gb=1e308, weights_gb=1.0), memory(peak_gb=2.0, weights_gb=2.0)),
    "a slow rank": (
        (run([0.1] * 40, samples=8), run([0.2] * 40, samples=4, rank=1)), run([0.2] * 40, samples=6),
    ),
    "ranks without a journal": (
        tuple([run([0.1 + 0.1 * rank] * 40, rank=rank, world_size=2) for rank in (0, 1)]),
        run([0.1] * 40, world_size=2),
    ),
    "excluded and lost steps": (run([9.0, None, *[0.1] * 40], excluded=("first", *[None] * 41)), PLAIN),
    "a later fit of fewer ranks": (
        PLAIN,
        (run([0.3] * 40, world_size=2, attempts=[TODAY]), run([0.3] * 40, rank=1, world_size=2)),
    ),
    "a restart with fewer ranks": (
        PLAIN, (run([0.3] * 40, world_size=2, attempts=[AGAIN]), run([0.3] * 40, rank=1, world_size=2)),
    ),
    "few steps": (run([0.1] * 9), run([0.1] * 90)),
    "impossible steps": (run([1e308] * 100), run([1e308] * 100)),
    "several runs that differ as much": (several(0.1, *WIDE), several(0.11, *WIDE)),
    "several slower runs": (several(0.1, *SPREAD), several(0.11, *SPREAD)),
    "several slightly slower runs": (several(0.1, *SPREAD), several(0.1045, *SPREAD)),
    "several slightly faster runs": (several(0.1045, *SPREAD), several(0.1, *SPREAD)),
    "one new run near the old ones": (several(0.1, *SPREAD), several(0.106, 1.0)),
    "one new run far from the old ones": (several(0.1, *SPREAD), several(0.12, 1.0)),
    "a busier machine": (beside(QUIET, 0.1), beside(BUSY, 0.1836)),
    "a busier machine, other steps": (beside(QUIET, 0.1, tokens=800), beside(BUSY, 0.2, tokens=840)),
    "a change beyond the load": (beside(QUIET, 0.1), beside(BUSY, 2.0)),
    "a change against the load": (beside(BUSY, 0.1), beside(QUIET, 0.2)),
    "a load that may hide a change": (beside(BUSY, 0.1), beside(QUIET, 0.1)),
    "disturbed runs": (
        several(0.1, *[factor * (1 + (load is BUSY)) for factor, load in zip(SPREAD, LOADS, strict=True)], cpu=LOADS),
        several(0.12, *SPREAD, cpu=[QUIET] * 5),
    ),
    "the same load": (several(0.1, *SPREAD, cpu=[BUSY] * 5), several(0.12, *SPREAD, cpu=[BUSY] * 5)),
    "other parameters": (run(0.2, samples=8, parameters=1_000), run(0.1, samples=8, parameters=500)),
    "another batch": (run(0.2, samples=8, batch=8), run(0.1, samples=8, batch=4)),
    "another device": (run(0.2, samples=8, device="cpu"), run(0.1, samples=8, device="NVIDIA H100 80GB HBM3")),
    "other ranks": (run(0.2, samples=8, world_size=1), run(0.1, samples=8, world_size=2)),
    "another model": (run(0.2, samples=8, model="Llama"), run(0.1, samples=8, model="Mistral")),
    "other samples of a step": (run(0.1, samples=8), run(0.1, samples=16)),
    "unlike runs on one side": (
        several(0.1, 1.0, batch=8) + several(0.1, 1.0, batch=4), several(0.1, 1.0, 1.0, batch=8),
    ),
    **{
        f"a load of {value}": (
            beside(CpuSummary(cpus=2, no_cpu_share=value, other_cpus=value, idle_cpus=value, load_average=value), 0.1),
            beside(QUIET, 0.1),
        )
        for value in (-1.0, 1e308, 7.0)
    },
}  # fmt: skip
"""By name: run A and run B, or several runs of each."""


def test_texts_are_as_their_snapshot(tmp_path, capsys):
    shown = ""
    for name, (a, b) in CASES.items():
        directory = tmp_path / name.replace(" ", "-")
        status = main(["compare", *written(directory, a, b)])
        printed = capsys.readouterr()
        shown += f"=== {name}, exit status {status}\n{printed.out}{printed.err}".replace(f"{directory}/", "") + "\n"
    assert matches(Path(__file__).with_name("printed") / "compare.txt", shown)
    assert max(map(len, shown.splitlines())) <= 80


def as_json(capsys, words):
    status = main(["compare", *words, "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    return status, found | {"metrics": {one["metric"]: one for one in found["metrics"]}}


def test_json_has_the_figures_of_the_text(tmp_path, capsys):
    status, found = as_json(capsys, written(tmp_path / "slower", *CASES["several slower runs"]))
    assert (status, found["decided_by"], found["regression"], found["runs"]) == (1, "samples/s", True, [5, 5])
    change = found["metrics"]["step_time"]
    assert change["low"] < 0.1 < change["high"] < 0.15
    status, found = as_json(capsys, written(tmp_path / "tokens", *CASES["tokens"]))
    other = "steps have different numbers of tokens in A and in B"
    assert found["not_compared"] == {"step_time": other, "quick_step_time": other}
    assert found["differences"] == {"tokens per step": {"a": 800.0, "b": 860.0}}
    status, found = as_json(capsys, written(tmp_path / "busier", *CASES["a busier machine"]))
    assert (status, found["busier"], found["left_out"], found["steps"]) == (2, "B", [0, 0], [100, 100])
    status, found = as_json(capsys, written(tmp_path / "batch", *CASES["unlike runs on one side"]))
    assert (status, found["unlike"]) == (2, {"batch": {"a": "8, 4", "b": 8}})
    assert {one["verdict"] for one in found["metrics"].values()} == {None}


def test_markdown_is_a_code_block_that_the_journal_can_not_end(tmp_path, capsys):
    words = written(tmp_path, run(0.1, device="```"), run(0.1, device="\n```\n\x1b[1m"))
    assert main(["compare", *words, "--format", "markdown"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "Not decided: the runs are not alike: device ``` -> ?```??[1m."
    assert (lines[0], lines[-2:]) == ("````text", ["  device: ``` -> ?```??[1m", "````"])


def a_noisy_run(seed, *, length=1200):
    """Times of steps that depend on the ones before, drift a little, and now and then wait for something else."""
    rng, state, times = random.Random(seed), 0.0, []
    for place in range(length):
        state = 0.9 * state + rng.gauss(0.0, 0.01)
        spike = 10.0 if rng.random() < 0.02 else 1.0
        times.append(0.01 * math.exp(state + 0.02 * math.sin(place / 100)) * spike)
    return times


def test_halves_of_a_run_are_no_regression_and_slower_steps_are(tmp_path):
    verdicts = {1.0: [], 1.1: []}
    for seed in range(20):
        times = a_noisy_run(seed)
        first, second = times[: len(times) // 2], times[len(times) // 2 :]
        for factor, statuses in verdicts.items():
            slower = run([factor * time for time in second], samples=16)
            statuses.append(main(["compare", *written(tmp_path / f"{seed}-{factor}", run(first, samples=16), slower)]))
    assert verdicts == {1.0: [0] * 20, 1.1: [1] * 20}


def test_the_threshold_is_a_percentage_of_the_time(tmp_path):
    a, b = written(tmp_path, run(0.1, samples=8), run(0.12, samples=8))
    for fail_over, status in (("5", 1), ("19", 1), ("21", 0), ("0", 1), ("25", 0)):
        assert main(["compare", a, b, "--fail-over", fail_over]) == status
        assert main(["compare", b, a, "--fail-over", fail_over]) == 0


@pytest.mark.parametrize("word", ["-1", "nan", "inf", "much"])
def test_a_threshold_that_is_none_is_refused(word):
    with pytest.raises(SystemExit) as raised:
        main(["compare", "a", "b", "--fail-over", word])
    assert raised.value.code == 2


@pytest.mark.parametrize("words", [[], ["a"], ["a", "b", "--base", "c", "--new", "d"], ["--base", "a"]])
def test_each_side_is_given_once(capsys, words):
    assert main(["compare", *words]) == 2
    assert "--base A1 A2 A3 --new B1 B2 B3" in capsys.readouterr().err


@pytest.mark.parametrize(
    "columns", [{"step_time": [1e-300] * 7 + [1e29] * 113}, {"step_time": [1e-300] * 120, "samples": [10**30] * 120}]
)
def test_values_that_no_run_can_have_are_said_to_be_such(tmp_path, capsys, columns):
    block = json.dumps({"type": "steps", "t": 1.0, "step": [*range(1, 121)], **columns})
    a = write(tmp_path / "a", encode(Entry(0.0, a_run())) + "\n" + block + "\n")
    assert main(["compare", a, a]) == 2
    assert capsys.readouterr() == ("", "perf-callbacks compare: not decided: a journal holds impossible values\n")
    assert main(["compare", a, str(tmp_path / "gone")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
