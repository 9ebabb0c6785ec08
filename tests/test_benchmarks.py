"""The checks that need a GPU run in a small form without one, as far as they can."""

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def gpu(*arguments, timeout=280):
    command = [sys.executable, BENCHMARKS / "gpu.py", *arguments]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # as on a machine without one
    return subprocess.run(command, env=environ, timeout=timeout, capture_output=True, text=True, check=False)


PARTS = (
    *("machine", "truth", "placement", "two", "profiler", "calls", "tf32", "hardware", "same", "overhead"),
    *("collections", "loaders", "graphs"),
)


@pytest.fixture(params=["cpu", "sim"])
def dry_run(request, tmp_path):
    """The kind of device, what is printed, and what is written by part."""
    out = tmp_path / "results" / "out.md"
    done = gpu("--device", request.param, "--quick", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    written = out.read_text(encoding="utf-8")
    assert all(line in done.stdout for line in written.splitlines()[4:])
    assert done.stdout.endswith(f"{len(PARTS)} parts, of which 0 failed\n")
    parts = re.findall(r"`--parts (\w+)`, \d+ s of \d+ planned\n\n(.*?)\n(?:\n|$)", written, re.DOTALL)
    assert tuple(name for name, _ in parts) == PARTS
    return request.param, dict(parts)


@pytest.mark.slow
def test_each_part_of_the_gpu_benchmark_runs_without_a_gpu(dry_run):
    kind, parts = dry_run
    assert "| driver, clock, best product | needs CUDA |" in parts["machine"]
    counted = re.findall(r"\| (?:model|hardware) FLOPs \| (\d+) \| \1 \|", parts["truth"])
    clock = {"cpu": "host", "sim": "device"}[kind]
    assert len(counted) == parts["truth"].count(f"| not counted; lost; clock |  | {{}}; 0; {clock} |") * 2
    assert ("| Llama | left out: " in parts["truth"]) == (len(counted) == 4)
    assert parts["placement"].count(f"of 6; {clock} |") == 2
    assert "| model on the second device, first one current | skipped: needs two GPUs |" in parts["placement"]
    assert "| one model over two devices | skipped: needs two GPUs |" in parts["two"]
    assert "| all | torch.profiler recorded no kernels: needs CUDA |" in parts["profiler"]
    assert ("a mark, of the 5 of a step: check for a capture, record" in parts["calls"]) == (kind == "sim")
    assert parts["tf32"].count("| float32 | ") >= 4
    assert ("left out: a device without UUID has no NVML" in parts["hardware"]) == (kind == "cpu")
    assert parts["same"].count("6 of 6 losses and the weights are bitwise equal") == 2
    for part, variants in {
        "overhead": ("nothing again", "ours", 'ours, checklist="off"'),
        "collections": ('gc="sync"',),
        "loaders": ('loaders="apply"',),
    }.items():
        assert all(f" | {variant} | " in parts[part] for variant in variants)
    assert parts["graphs"].count("with the callback | succeeds") == 3
    assert parts["graphs"].count("8 of 8 losses and the weights are bitwise equal") == 4
    assert not [line for rows in parts.values() for line in rows.splitlines() if "failed" in line or "stopped" in line]


@pytest.fixture
def door(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = {*sys.modules}
    spec = importlib.util.spec_from_file_location("gpu_checks", BENCHMARKS / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_checks"] = module
    spec.loader.exec_module(module)
    yield module
    for name in {*sys.modules} - before:
        if name.partition(".")[0] in {"gpu", "gpu_checks", "turns"}:
            del sys.modules[name]


def test_without_a_gpu_it_says_what_can_be_done(door, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        door.main()
    assert "no GPU that torch can use; --device sim --quick and --device cpu --quick try" in capsys.readouterr().err


def a_part(door, name, rows, seconds=10):
    return door.Part(name, name.title(), seconds, ("what", "value"), rows)


def bench(door, tmp_path, **fields):
    return door.Bench(torch.device("cpu"), True, tmp_path, **fields)


def rows_of(door, tmp_path, parts, **fields):
    """The number of failed parts, and the rows below the columns."""
    out = tmp_path / "new" / "out.md"
    failed = door.run(parts, bench(door, tmp_path, **fields), out)
    lines = [line for line in out.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return failed, [line for line in lines if line not in {"| what | value |", "| --- | --- |"}]


def breaking(_bench):
    yield "before", "1"
    raise RuntimeError("no such\nthing")


def test_a_part_that_fails_keeps_its_rows_and_the_others_go_on(door, tmp_path):
    parts = [a_part(door, "first", breaking), a_part(door, "second", lambda _: [("after", "2")])]
    failed, rows = rows_of(door, tmp_path, parts)
    assert failed == 1
    assert rows == ["| before | 1 |", "| failed: RuntimeError: no such |  |", "| after | 2 |"]


def test_a_case_that_fails_leaves_the_other_cases_of_its_part(door, tmp_path):
    def cases(bench):
        from gpu.bench import attempted

        for name, rows in (("first", breaking), ("second", lambda _: [("after", "2")])):
            yield from attempted(bench, name, lambda rows=rows: rows(bench))

    failed, rows = rows_of(door, tmp_path, [a_part(door, "cases", cases)])
    assert failed == 1
    assert rows == ["| before | 1 |", "| first | failed: RuntimeError: no such |", "| after | 2 |"]


def test_a_part_without_its_package_says_so_and_has_not_failed(door, tmp_path):
    def importing(_bench):
        yield "before", "1"
        import no_such_package  # noqa: F401

    failed, rows = rows_of(door, tmp_path, [a_part(door, "first", importing)])
    assert failed == 0
    assert rows[-1] == "| left out: ModuleNotFoundError: No module named 'no_such_package' |  |"


def test_the_planned_seconds_of_all_parts_are_under_nine_minutes(door):
    assert tuple(part.name for part in door.PARTS) == PARTS
    assert sum(part.seconds for part in door.PARTS) <= door.TOTAL_SECONDS - 40  # to start torch and CUDA
    assert door.TOTAL_SECONDS == 540


def test_a_part_that_overruns_stops_at_its_next_round_and_says_so(door, tmp_path):
    now = [100.0]

    def slow(bench):
        for number in bench.allowance.rounds(9, "slow"):
            now[0] += 4
            yield "round", str(number)

    def cases(bench):
        for case in bench.allowance.each(("a", "b", "c")):
            for _ in bench.allowance.rounds(None, case):
                now[0] += 2
            yield case, ""
            now[0] += 3

    parts = [a_part(door, "slow", slow), a_part(door, "cases", cases), a_part(door, "late", slow)]
    _, rows = rows_of(door, tmp_path, parts, allowance=door.Allowance(20, clock=lambda: now[0]))
    over = "the planned seconds are over"
    assert rows == [
        *("| round | 0 |", "| round | 1 |", "| round | 2 |", f"| slow: stopped after 3 of 9 rounds, {over} |  |"),
        *("| a |  |", "| b |  |"),  # 12 of 20 seconds are over: 8 are left
        f"| a: stopped after 2 rounds, {over} |  |",
        f"| b: stopped after 1 rounds, {over} |  |",
        f"| c: left out, {over} |  |",
        "| left out: the 540 seconds of all parts are over |  |",
    ]


def test_models_on_a_second_device_and_over_two_devices_run(door, tmp_path):
    """Both devices are the CPU: only the code is tested."""
    wanted = [part for part in door.PARTS if part.name in {"placement", "two"}]
    failed, rows = rows_of(door, tmp_path, wanted, second=torch.device("cpu"))
    assert failed == 0
    assert any(row.startswith("| model on cpu, cpu current | step_time |") for row in rows)
    (weights,) = [row for row in rows if row.startswith("| weights, GB |")]
    assert weights.endswith("| +0.000% |")
    assert any(row.startswith("| backward_time |") for row in rows)


def test_kernels_belong_to_the_range_in_which_any_thread_launched_them(door):
    from gpu import profiler

    def event(kind, name, ts, dur, correlation=None):
        return {"cat": kind, "name": name, "ts": ts, "dur": dur, "args": {"correlation": correlation}}

    def step(start, first):
        names = ("forward", "backward", "optimizer")
        ranges = [event("user_annotation", name, start + 100 * n, 90) for n, name in enumerate(names)]
        launches = [event("cuda_runtime", "launch", start + 100 * n + 50, 1, first + n) for n in range(3)]
        kernels = [event("kernel", "sum", start + 1000 + 2000 * n, 1500, first + n) for n in range(3)]
        return [*ranges, *launches, *kernels, event("kernel", "of no range", start, 1, 99), {"ph": "M", "name": "x"}]

    found = profiler.by_stage([*step(0, 10), *step(10_000, 20)])
    assert [{name: (one.count, one.busy) for name, one in each.items()} for each in found] == [
        {"forward": (1, 1.5), "backward": (1, 1.5), "optimizer": (1, 1.5)}
    ] * 2
    assert profiler.between_ends(found, "backward") == [2.0, 2.0]
    assert profiler.between_ends(found, "forward") == [pytest.approx(6.0)]


class NvmlError(Exception):
    pass


def fake_nvml():
    """What `Nvml` calls, with constant answers. The power limit is refused."""
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError, nvml.NVML_CLOCK_SM, nvml.NVML_GPM_METRICS_GET_VERSION, nvml.NVML_SUCCESS = NvmlError, 1, 1, 0
    nvml.NVML_GPM_METRIC_SM_UTIL, nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, nvml.NVML_GPM_METRIC_DRAM_BW_UTIL = 2, 5, 10
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda _: 5_000
    nvml.nvmlDeviceGetPowerUsage = lambda _: 300_000
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda _: 0x4
    nvml.nvmlDeviceGetClockInfo = lambda *_: 1980
    nvml.nvmlDeviceGetEnforcedPowerLimit = lambda _: 700_000

    def refuse(_):
        raise NvmlError("Not Supported")

    nvml.nvmlDeviceGetPowerManagementDefaultLimit = refuse
    nvml.nvmlGpmQueryDeviceSupport = lambda _: types.SimpleNamespace(isSupportedDevice=1)
    nvml.nvmlGpmSampleAlloc, nvml.nvmlGpmSampleGet = (lambda: "sample"), lambda _handle, sample: sample
    nvml.nvmlGpmSampleFree = lambda _: None
    nvml.c_nvmlGpmMetricsGet_t = lambda: types.SimpleNamespace(
        metrics=[types.SimpleNamespace(metricId=0, value=0.0, nvmlReturn=0) for _ in range(3)]
    )

    def measure(request):
        for metric in request.metrics:
            metric.value = metric.metricId * 10.0
        request.metrics[0].nvmlReturn = 3  # not supported

    nvml.nvmlGpmMetricsGet = measure
    return nvml


def test_counters_are_read_by_the_shortest_way(door, monkeypatch):
    from gpu.nvml_truth import Nvml

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    truth = Nvml("ab")
    assert truth.read() == (5.0, 300.0, 4, 1980)
    assert truth.limits() == "700 W of —"
    assert truth.refusals == {"nvmlDeviceGetPowerManagementDefaultLimit": "Not Supported"}
    shares = truth.gpm_shares(truth.gpm_sample(), truth.gpm_sample())
    assert shares == {"multiprocessors": None, "tensor cores": 0.5, "bandwidth of memory": 1.0}


def test_the_installed_nvml_has_the_names_that_the_counters_use():
    installed = pytest.importorskip("pynvml")
    assert not [name for name in vars(fake_nvml()) if not name.startswith("_") and not hasattr(installed, name)]


def test_energy_stands_beside_power_times_time(door):
    from gpu.hardware import _energy
    from gpu.nvml_truth import Reading

    ours = types.SimpleNamespace(watts=303.0, joules=None, throttled_by=("power cap",), sm_mhz=1980)
    readings = [(float(second), Reading(330.0 * second, 300.0, 0x4, 1980), ours) for second in range(11)]
    rows = [*_energy("load", readings)]
    assert rows[:3] == [
        ("load", "energy in 10.00 s by its counter", "3300.00 J", "—", "the package read no energy"),
        ("load", "power x time, 11 readings", "3000.00 J", "", "the counter's is +10.00% beside it"),
        ("load", "mean power", "300.0 W", "303.0 W", "+1.00%"),
    ]
    assert rows[3] == ("load", "reasons for a lower clock, 11 readings", "power cap (0x4)", "power cap")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_killed_run_leaves_all_steps_but_the_last_five_seconds():
    command = [sys.executable, BENCHMARKS / "killed.py", "--moments", "4", "--within", "12"]
    done = subprocess.run(command, timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 journals" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGSTOP")
@pytest.mark.parametrize(
    "case", ["next(loader)", "lock", "collective", "checkpoint", "SIGSTOP", "GIL held", "single, lock"]
)
def test_of_two_ranks_the_one_that_hangs_is_named_with_its_stage_and_line(case):
    command = [sys.executable, BENCHMARKS / "stalls.py", "hangs", "--runs", "1", "--doors", "loop", "--cases", case]
    done = subprocess.run([*command, "--allowed", "120"], timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 hangs were told rightly" in done.stdout


@pytest.mark.slow
def test_one_rank_of_many_tells():
    command = [sys.executable, BENCHMARKS / "stalls.py", "ranks", "--size", "64"]
    done = subprocess.run(command, timeout=280, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("told by rank 0: Rank 63 is ") == 2


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without it")
def test_slow_code_of_one_rank_is_found_wherever_it_is_under_ddp():
    command = [sys.executable, BENCHMARKS / "straggler_layouts.py", "--layouts", "ddp"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, timeout=280, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"^\| ([\w ]+) \| (.*) \|$", done.stdout, re.MULTILINE))
    for place, cause in (("data", "data"), ("between steps", "host"), ("backward", "host"), ("gc", "gc")):
        assert cause in rows[place], rows


def replayed(*files):
    command = [sys.executable, BENCHMARKS / "replay.py", *files]
    done = subprocess.run(command, timeout=120, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_replay_of_a_generated_job_names_its_slow_ranks_as_a_set(tmp_path):
    file = tmp_path / "job.json"
    command = [sys.executable, BENCHMARKS / "replay.py", "--generate", file, "--slow", "3", "9", "40"]
    subprocess.run(command, timeout=120, check=True)
    (found,) = replayed(file)
    (named,) = found["named"]
    assert (named["ranks"], named["cause"]) == ([3, 9, 40], "host")
    assert found["slowdown"] == pytest.approx(1.32, abs=0.03)
    assert (found["uneven_batches_seconds"], found["uneven_stages_seconds"]) == (0, 0)


def test_a_replay_knows_stages_and_tokens(tmp_path):
    pipeline, ragged = tmp_path / "pipeline.json", tmp_path / "ragged.json"
    chance = random.Random(0)
    steps, tokens = [*range(100)], [[chance.randrange(100, 1000) for _ in range(100)] for _ in range(4)]
    stages = [{"rank": rank, "stage": rank // 2, "data_rank": rank % 2} for rank in range(4)]
    pipeline.write_text(
        json.dumps(
            {
                "steps": steps,
                "ranks": [one | {"compute_seconds": [1.0 + 0.5 * one["stage"]] * 100} for one in stages],
            }
        )
    )
    ragged.write_text(
        json.dumps(
            {
                "steps": steps,
                "ranks": [
                    {"rank": rank, "compute_seconds": [size / 1000 for size in column], "tokens": column}
                    for rank, column in enumerate(tokens)
                ],
            }
        )
    )
    uneven_stages, uneven_batches = replayed(pipeline, ragged)
    assert uneven_stages["uneven_stages_seconds"] == pytest.approx(25, rel=0.05)
    assert uneven_batches["uneven_batches_seconds"] == pytest.approx(
        sum([max(row) - sum(row) / 4 for row in zip(*tokens, strict=True)]) / 1000, rel=0.02
    )
    assert uneven_stages["named"] == uneven_batches["named"] == []
