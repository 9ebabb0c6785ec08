"""`perf-callbacks compare` on journals that the test has written."""

import json
import math
import random
import re
from dataclasses import replace

import pytest
from fakes import a_run
from summaries import a_summary_of

from perf_callbacks.commands import main
from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.fit_records import Checklist, Steps
from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.kernel.records.summary_parts import CpuSummary
from perf_callbacks.report import comparison_text

SUMMARY = a_summary_of(
    run_id="a1",
    attempt=1,
    step=100,
    steps=100,
    included_steps=100,
    included_seconds=10.0,
    stage_seconds={},
    samples=None,
    tokens=None,
    included_samples=None,
    included_tokens=None,
    included_useful_tokens=None,
    model_flops=10**13,
    hardware_flops=12 * 10**12,
    flops_seconds=10.0,
    flops_steps=100,
    flops_source="counted",
    flops_dtype="bfloat16",
    peak_flops_per_second=10e12,
    peak_source="the table",
    total_samples=None,
    total_tokens=None,
    gc_collections=None,
    gc_seconds=None,
    gc_longest=None,
)


def write(directory, *records, rank=0, **run):
    folder = directory / "perf_callbacks"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [encode(Entry(float(place), one)) for place, one in enumerate([a_run(rank=rank, **run), *records])]
    (folder / f"rank{rank}.jsonl").write_text("\n".join(lines) + "\n")
    return directory


def steps(times, **columns):
    """A block of steps; a number stands for a whole column."""
    length = len(times)
    columns = {name: (value,) * length if not isinstance(value, tuple) else value for name, value in columns.items()}
    return Steps(step=tuple(range(1, length + 1)), step_time=tuple(times), **columns)


def around(seconds, *, length=100, seed=0):
    rng = random.Random(seed)
    return [seconds * (1 + 0.02 * rng.random()) for _ in range(length)]


def compared(capsys, *words, status=0):
    assert main(["compare", *map(str, words)]) == status
    return capsys.readouterr().out


def as_json(capsys, *words, status=0):
    found = json.loads(compared(capsys, *words, "--format", "json", status=status))
    return found | {"metrics": {one["metric"]: one for one in found["metrics"]}}


def a_noisy_run(seed, *, length=1200):
    """Times of steps that depend on the ones before, drift a little, and now and then wait for something else."""
    rng, state, times = random.Random(seed), 0.0, []
    for place in range(length):
        state = 0.9 * state + rng.gauss(0.0, 0.01)
        spike = 10.0 if rng.random() < 0.02 else 1.0
        times.append(0.01 * math.exp(state + 0.02 * math.sin(place / 100)) * spike)
    return times


def test_halves_of_a_run_are_no_regression_and_slower_steps_are(tmp_path, capsys):
    verdicts = {1.0: [], 1.1: []}
    for seed in range(20):
        times = a_noisy_run(seed)
        half = len(times) // 2
        a = write(tmp_path / f"a{seed}", steps(times[:half], samples=16))
        for factor, found in verdicts.items():
            slower = [factor * time for time in times[half:]]
            b = write(tmp_path / f"b{seed}-{factor}", steps(slower, samples=16))
            found.append(main(["compare", str(a), str(b)]))
    capsys.readouterr()
    assert verdicts == {1.0: [0] * 20, 1.1: [1] * 20}


def test_more_long_steps_are_a_regression_though_quick_ones_are_as_quick(tmp_path, capsys):
    a = write(tmp_path / "a", steps(around(0.1, length=400), samples=8))
    waiting = [time + 0.2 * (place % 10 == 0) for place, time in enumerate(around(0.1, length=400, seed=1))]
    found = as_json(capsys, a, write(tmp_path / "b", steps(waiting, samples=8)), status=1)
    assert found["decided_by"] == "samples/s"
    assert found["metrics"]["quick_step_time"]["verdict"] == "same"


def test_quick_steps_decide_where_throughput_is_uncertain(tmp_path, capsys):
    def spiky(seconds, seed):
        rng = random.Random(seed)
        return [time * (50 if rng.random() < 0.02 else 1) for time in around(seconds, length=400, seed=seed)]

    a = write(tmp_path / "a", steps(spiky(0.1, 0), samples=8))
    b = write(tmp_path / "b", steps(spiky(0.12, 1), samples=8))
    found = as_json(capsys, a, b, status=1)
    assert (found["decided_by"], found["metrics"]["samples/s"]["verdict"]) == ("quick_step_time", "undecided")


def test_text(tmp_path, capsys):
    a = write(tmp_path / "a", steps(around(0.1), samples=8, forward_time=0.04, model_flops=10**11), SUMMARY)
    b = write(
        tmp_path / "b",
        Checklist(item="gc", status="applied"),
        steps(around(0.12, seed=1), samples=8, forward_time=0.04, model_flops=10**11),
        SUMMARY,
        versions={"perf_callbacks": "1.0", "torch": "2.9"},
        config={"gc": "off"},
    )
    lines = compared(capsys, a, b, status=1).splitlines()
    assert lines[0] == "B is slower: samples/s changed by -16.5 % (-16.7 % to -16.4 %)."
    assert " ".join(line.strip() for line in lines[1:4]) == comparison_text.ONE_RUN
    assert lines[4] == "A: 100 measured steps, B: 100"
    assert lines[5].split() == ["metric", "A", "B", "change", "99", "%", "interval"]
    rows = {line.split()[0]: line.split() for line in lines[6:]}
    assert rows["step_time"][-1] == rows["samples/s"][-1] == rows["mfu"][-1] == "worse"
    assert rows["forward_time"] == ["forward_time", "40.0", "ms", "40.0", "ms", "+0.0", "%", "—", "same"]
    assert rows["mfu"][1:3] == ["9.88%", "8.25%"]
    assert lines[-4:] == ["differences", "  torch: — -> 2.9", "  gc: sync -> off", "  checklist: gc: — -> applied"]
    assert max(map(len, lines)) <= 80


def test_markdown_is_a_code_block_that_the_journal_can_not_end(tmp_path, capsys):
    a = write(tmp_path / "a", steps(around(0.1)), device="```")
    b = write(tmp_path / "b", steps(around(0.1, seed=1)), device="\n```\n\x1b[1m")
    lines = compared(capsys, a, b, "--format", "markdown", status=2).splitlines()
    assert lines[1] == "Not decided: the runs are not alike: device ``` -> ?```??[1m."
    assert (lines[0], lines[-2:]) == ("````text", ["  device: ``` -> ?```??[1m", "````"])


@pytest.mark.parametrize(("fail_over", "status"), [("5", 1), ("19", 1), ("21", 0), ("0", 1), ("25", 0)])
def test_the_threshold_is_a_percentage_of_the_time(tmp_path, capsys, fail_over, status):
    a = write(tmp_path / "a", steps(around(0.1), samples=8))
    b = write(tmp_path / "b", steps(around(0.12, seed=1), samples=8))
    compared(capsys, a, b, "--fail-over", fail_over, status=status)
    compared(capsys, b, a, "--fail-over", fail_over)


def test_a_change_that_may_be_chance_is_no_regression(tmp_path, capsys):
    a = write(tmp_path / "a", steps([0.1, 0.3] * 5))
    b = write(tmp_path / "b", steps([0.1, 0.1, 0.4, 0.1, 0.4, 0.1, 0.3, 0.3, 0.4, 0.4]))
    assert compared(capsys, a, b).startswith("Undecided, run more steps: ")


def test_tokens_decide_before_samples_and_samples_before_steps(tmp_path, capsys):
    a = write(tmp_path / "a", steps(around(0.1, length=200), samples=8, tokens=800))
    b = write(tmp_path / "b", steps(around(0.15, length=200, seed=1), samples=8, tokens=860))
    found = as_json(capsys, a, b, status=1)
    assert (found["decided_by"], found["regression"]) == ("tokens/s", True)
    assert found["metrics"]["samples/s"]["verdict"] == "worse"
    assert found["metrics"]["step_time"]["verdict"] is None
    other = "steps have different numbers of tokens in A and in B"
    assert found["not_compared"] == {"step_time": other, "quick_step_time": other}
    assert found["differences"] == {"tokens per step": {"a": 800.0, "b": 860.0}}


CHANGES = {
    "source": ("closed form", {"tflops", "mfu", "hfu"}),
    "lower_bound": (True, {"tflops", "mfu", "hfu"}),
    "dtype": ("float32", {"mfu", "hfu"}),
    "peak_flops_per_second": (11e12, {"mfu", "hfu"}),
    "peak_measured": (True, {"mfu", "hfu"}),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_mfu_by_another_convention_has_no_verdict_and_a_reason(tmp_path, capsys, changed):
    value, without = CHANGES[changed]
    block = steps(around(0.1), samples=8, model_flops=10**11)
    a = write(tmp_path / "a", block, SUMMARY)
    b = write(tmp_path / "b", block, replace(SUMMARY, flops=replace(SUMMARY.flops, **{changed: value})))
    found = as_json(capsys, a, b)
    assert {*found["not_compared"]} == without
    assert {name for name, one in found["metrics"].items() if one["verdict"] is None} == without
    assert all(found["metrics"][name]["a"] for name in without)
    assert re.search(r"^no verdict on .*\bmfu\b", compared(capsys, a, b), re.MULTILINE)


def test_times_of_another_clock_have_no_verdict(tmp_path, capsys):
    block = steps(around(0.1), samples=8)
    a, b = write(tmp_path / "a", block), write(tmp_path / "b", block, timeline="device")
    out = compared(capsys, a, b, status=2)
    assert "no verdict on step_time, samples/s: A was timed by the host, B by the device" in out
    assert out.startswith("Not decided: A was timed by the host, B by the device.")


def test_memory_is_compared_and_does_not_decide(tmp_path, capsys):
    block = steps(around(0.1), samples=8)
    a = write(tmp_path / "a", block, Memory(step=2, device="cpu", peak_gb=2.0))
    b = write(tmp_path / "b", block, Memory(step=2, device="cpu", peak_gb=3.0))
    found = as_json(capsys, a, b)
    assert (found["metrics"]["peak_gb"]["verdict"], found["metrics"]["peak_gb"]["change"]) == ("worse", 0.5)
    assert found["regression"] is False


@pytest.mark.parametrize(("before", "after"), [(2.0, 0.0), (0.0, 2.0), (None, 2.0), (2.0, None)])
def test_memory_that_one_run_lacks_has_no_verdict(tmp_path, capsys, before, after):
    block = steps(around(0.1), samples=8)
    a = write(tmp_path / "a", block, Memory(step=2, device="cpu", optimizer_gb=before))
    b = write(tmp_path / "b", block, Memory(step=2, device="cpu", optimizer_gb=after))
    found = as_json(capsys, a, b)["metrics"]["optimizer_gb"]
    assert (found["a"], found["b"], found["verdict"]) == (before, after, None)


def test_a_step_of_several_ranks_is_as_long_as_the_slowest(tmp_path, capsys):
    a = write(tmp_path / "a", steps([0.1] * 40, samples=8))
    write(tmp_path / "a", steps([0.2] * 40, samples=4), rank=1)
    b = write(tmp_path / "b", steps([0.2] * 40, samples=6))
    found = as_json(capsys, a, b)["metrics"]
    assert (found["step_time"]["a"], found["samples/s"]["a"]) == (0.2, pytest.approx(30))
    assert found["samples/s"]["change"] == pytest.approx(0)


def test_too_few_steps_decide_nothing(tmp_path, capsys):
    a, b = write(tmp_path / "a", steps([0.1] * 9)), write(tmp_path / "b", steps([0.1] * 90))
    out = compared(capsys, a, b, status=2)
    assert out.startswith("Not decided: one of the runs has fewer than ten measured steps.")


@pytest.mark.parametrize("word", ["-1", "nan", "inf", "much"])
def test_a_threshold_that_is_none_is_refused(tmp_path, capsys, word):
    with pytest.raises(SystemExit) as raised:
        main(["compare", "a", "b", "--fail-over", word])
    assert raised.value.code == 2
    capsys.readouterr()


def test_ranks_that_a_restart_left_out_are_not_compared(tmp_path, capsys):
    a = write(tmp_path / "a", steps([0.1] * 40))
    for rank in (0, 1):
        b = write(tmp_path / "b", steps([0.3] * 40), rank=rank, world_size=2)
    again = [Entry(0.0, a_run(attempt=2, step=20, started_unix=86400.0)), Entry(1.0, steps([0.1] * 40))]
    with (b / "perf_callbacks/rank0.jsonl").open("a") as journal:
        journal.writelines(encode(entry) + "\n" for entry in again)
    assert as_json(capsys, a, b)["metrics"]["step_time"]["b"] == pytest.approx(0.1)


def test_ranks_without_a_journal_are_named(tmp_path, capsys):
    for rank in (0, 1):
        a = write(tmp_path / "a", steps([0.1 + 0.1 * rank] * 40), rank=rank, world_size=2)
    b = write(tmp_path / "b", steps([0.1] * 40), world_size=2)
    compared(capsys, a, b)
    main(["compare", str(a), str(b), "--format", "json"])
    told = capsys.readouterr()
    assert told.err == f"{b}: ranks without a journal are left out: 1\n"
    assert json.loads(told.out)["steps"] == [40, 40]


@pytest.mark.parametrize(
    "columns",
    [
        {"step_time": [1e-300] * 7 + [1e29] * 113},
        {"step_time": [1e-300] * 120, "samples": [10**30] * 120},
    ],
)
def test_values_that_no_run_can_have_are_said_to_be_such(tmp_path, capsys, columns):
    a = write(tmp_path / "a")
    with (a / "perf_callbacks/rank0.jsonl").open("a") as journal:
        journal.write(json.dumps({"type": "steps", "t": 1.0, "step": [*range(1, 121)], **columns}) + "\n")
    assert main(["compare", str(a), str(a)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "perf-callbacks compare: not decided: a journal holds impossible values\n"


@pytest.mark.parametrize("size", [-1.0, 1e308])
def test_memory_that_no_run_can_have_is_left_out(tmp_path, capsys, size):
    block = steps(around(0.1))
    a = write(tmp_path / "a", block, Memory(step=2, device="cpu", peak_gb=size, weights_gb=1.0))
    b = write(tmp_path / "b", block, Memory(step=2, device="cpu", peak_gb=2.0, weights_gb=2.0))
    found = as_json(capsys, a, b)["metrics"]
    assert (found["peak_gb"]["a"], found["weights_gb"]["change"]) == (None, 1.0)


def runs(directory, name, *seconds, cpu=None, **run):
    """Directories of runs with these step times."""
    found = []
    for place, one in enumerate(seconds):
        summary = replace(SUMMARY, cpu=cpu[place] if cpu else None)
        block = steps(around(one, seed=place), samples=8)
        found.append(write(directory / f"{name}{place}", block, summary, run_id=f"{name}{place}", **run))
    return found


def sides(a, b):
    return ["--base", *a, "--new", *b]


SPREAD = (0.98, 1.0, 1.02, 0.99, 1.01)


def test_several_runs_that_differ_as_much_on_both_sides_are_undecided(tmp_path, capsys):
    a = runs(tmp_path, "a", *[0.1 * one for one in (0.8, 1.0, 1.2, 0.9, 1.1)])
    b = runs(tmp_path, "b", *[0.11 * one for one in (0.8, 1.0, 1.2, 0.9, 1.1)])
    out = compared(capsys, *sides(a, b))
    assert out.startswith("Undecided, make more runs: samples/s changed by -9.1 % (")
    assert "A: 500 measured steps of 5 runs, B: 500 measured steps of 5 runs" in out
    assert "One run on each side" not in out
    assert compared(capsys, a[1], b[1], status=1).startswith("B is slower: ")


def test_several_runs_show_a_change_that_is_larger_than_between_runs(tmp_path, capsys):
    a = runs(tmp_path, "a", *[0.1 * one for one in SPREAD])
    b = runs(tmp_path, "b", *[0.11 * one for one in SPREAD])
    found = as_json(capsys, *sides(a, b), status=1)
    assert (found["decided_by"], found["runs"]) == ("samples/s", [5, 5])
    change = found["metrics"]["step_time"]
    assert change["low"] < 0.1 < change["high"] < 0.15


def test_several_runs_show_a_sure_change_below_the_threshold(tmp_path, capsys):
    a = runs(tmp_path, "a", *[0.1 * one for one in SPREAD])
    b = runs(tmp_path, "b", *[0.1045 * one for one in SPREAD])
    assert compared(capsys, *sides(a, b)).startswith(
        "B is slower, below the threshold of 5 %: samples/s changed by -4.3 % ("
    )
    assert compared(capsys, *sides(b, a)).startswith("B is faster, below the threshold of 5 %: ")
    compared(capsys, *sides(a, b), "--fail-over", "3", status=1)


@pytest.mark.parametrize("words", [[], ["a"], ["a", "b", "--base", "c", "--new", "d"], ["--base", "a"]])
def test_each_side_is_given_once(capsys, words):
    assert main(["compare", *words]) == 2
    assert "--base A1 A2 A3 --new B1 B2 B3" in capsys.readouterr().err


QUIET = CpuSummary(cpus=2, no_cpu_share=0.001, other_cpus=0.02, idle_cpus=0.97, load_average=1.0)

BUSY = CpuSummary(cpus=2, no_cpu_share=0.4, other_cpus=1.4, idle_cpus=0.0, load_average=3.9)


def test_a_run_on_a_busier_machine_is_not_called_slower(tmp_path, capsys):
    (a,) = runs(tmp_path, "a", 0.1, cpu=[QUIET])
    (b,) = runs(tmp_path, "b", 0.1836, cpu=[BUSY])
    out = compared(capsys, a, b, status=2)
    assert out.splitlines()[0].startswith("Not decided: the machine was busier during B, which may explain the")
    assert "B: no CPU for 40.0% of the time, other programs used 1.4 of 2 CPUs, load" in out
    assert as_json(capsys, a, b, status=2)["busier"] == "B"


def test_a_change_that_the_load_can_not_explain_is_decided(tmp_path, capsys):
    (a,) = runs(tmp_path, "a", 0.1, cpu=[QUIET])
    slow = runs(tmp_path, "b", 2.0, cpu=[BUSY])[0]
    assert compared(capsys, a, slow, status=1).startswith("B is slower: ")
    busy = runs(tmp_path, "c", 0.1, cpu=[BUSY])[0]
    assert compared(capsys, busy, runs(tmp_path, "d", 0.2, cpu=[QUIET])[0], status=1).startswith("B is slower: ")


def test_equal_times_on_a_busier_machine_may_hide_a_change(tmp_path, capsys):
    (a,) = runs(tmp_path, "a", 0.1, cpu=[BUSY])
    (b,) = runs(tmp_path, "b", 0.1, cpu=[QUIET])
    assert compared(capsys, a, b, status=2).startswith(
        "Not decided: the machine was busier during A, which may hide a difference."
    )


def test_disturbed_runs_are_left_out_if_enough_others_are_left(tmp_path, capsys):
    loads = [QUIET, BUSY, QUIET, QUIET, BUSY]
    a = runs(
        tmp_path,
        "a",
        *[0.1 * one * (2 if load is BUSY else 1) for one, load in zip(SPREAD, loads, strict=True)],
        cpu=loads,
    )
    b = runs(tmp_path, "b", *[0.12 * one for one in SPREAD], cpu=[QUIET] * 5)
    found = as_json(capsys, *sides(a, b), status=1)
    assert (found["runs"], found["left_out"], found["steps"]) == ([3, 5], [2, 0], [300, 500])
    assert "of 3 runs (2 left out, because the" in compared(capsys, *sides(a, b), status=1)


def test_runs_beside_the_same_load_are_compared(tmp_path, capsys):
    a = runs(tmp_path, "a", *[0.1 * one for one in SPREAD], cpu=[BUSY] * 5)
    b = runs(tmp_path, "b", *[0.12 * one for one in SPREAD], cpu=[BUSY] * 5)
    assert as_json(capsys, *sides(a, b), status=1)["left_out"] == [0, 0]


UNLIKE = {
    "parameters": (1_000, 500),
    "batch": (8, 4),
    "device": ("cpu", "NVIDIA H100 80GB HBM3"),
    "world_size": (1, 2),
    "model": ("Llama", "Mistral"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_runs_that_are_not_alike_are_neither_better_nor_worse(tmp_path, capsys, name):
    before, after = UNLIKE[name]
    a = runs(tmp_path, "a", 0.2, **{name: before})
    b = runs(tmp_path, "b", 0.1, **{name: after})
    found = as_json(capsys, *a, *b, status=2)
    assert found["unlike"] == {name: {"a": before, "b": after}}
    assert {one["verdict"] for one in found["metrics"].values()} == {None}
    assert found["metrics"]["samples/s"]["change"] == pytest.approx(1.0, abs=0.01)
    assert compared(capsys, *a, *b, status=2).startswith(f"Not decided: the runs are not alike: {name} ")


def test_runs_of_one_side_must_be_alike_too(tmp_path, capsys):
    a = runs(tmp_path, "a", 0.1, batch=8) + runs(tmp_path, "c", 0.1, batch=4)
    b = runs(tmp_path, "b", 0.1, 0.1, batch=8)
    assert as_json(capsys, *sides(a, b), status=2)["unlike"] == {"batch": {"a": "8, 4", "b": 8}}


@pytest.mark.parametrize("value", [-1.0, 1e308, 7.0])
def test_loads_that_no_machine_has_are_unknown_or_bounded(tmp_path, capsys, value):
    load = CpuSummary(cpus=2, no_cpu_share=value, other_cpus=value, idle_cpus=value, load_average=value)
    (a,) = runs(tmp_path, "a", 0.1, cpu=[load])
    compared(capsys, a, a)


def test_more_throughput_is_no_regression_whatever_quick_steps_do(tmp_path, capsys):
    a = write(tmp_path / "a", steps([*[0.1] * 3, 0.9] * 40, samples=8))
    b = write(tmp_path / "b", steps([0.2] * 160, samples=8))
    found = as_json(capsys, a, b)
    assert (found["decided_by"], found["metrics"]["quick_step_time"]["verdict"]) == ("samples/s", "worse")


def test_throughput_on_a_busier_machine_has_no_verdict_if_times_are_not_compared(tmp_path, capsys):
    cpu = {"a": QUIET, "b": BUSY}
    a, b = [
        write(tmp_path / name, steps(around(seconds), samples=8, tokens=tokens), replace(SUMMARY, cpu=cpu[name]))
        for name, seconds, tokens in (("a", 0.1, 800), ("b", 0.2, 840))
    ]
    assert compared(capsys, a, b, status=2).startswith(
        "Not decided: the machine was busier during B, which may explain the difference."
    )
