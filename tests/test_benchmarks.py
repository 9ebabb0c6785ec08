"""The checks that need a GPU run in a small form without one, as far as they can."""

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def gpu(*arguments, timeout=280):
    command = [sys.executable, BENCHMARKS / "gpu.py", *arguments]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # as on a machine without one
    return subprocess.run(command, env=environ, timeout=timeout, capture_output=True, text=True, check=False)


def small(tmp_path, *parts, timeout=280):
    """What is printed, and what is written."""
    out = tmp_path / "results" / "cpu.md"
    done = gpu("--device", "cpu", "--quick", "--out", out, *(("--parts", *parts) if parts else ()), timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, out.read_text(encoding="utf-8")


def test_a_cpu_checks_some_parts_and_the_rest_says_that_it_needs_a_gpu(tmp_path):
    printed, written = small(tmp_path, "machine", "truth")
    assert "| CUDA, as torch was built | needs CUDA |" in written or torch.version.cuda
    assert "| driver, clock, best product | needs CUDA |" in written
    assert len(re.findall(r"\| (?:model|hardware) FLOPs \| (\d+) \| \1 \|", written)) == 6
    assert written.count("| not counted; lost; clock |  | {}; 0; host |") == 3
    assert all(line in printed for line in written.splitlines()[4:])
    assert printed.endswith("2 parts, of which 0 failed\n")


@pytest.mark.slow
def test_all_of_it_runs_in_a_small_form(tmp_path):
    printed, written = small(tmp_path, timeout=300)
    assert written.count("6 of 6 losses and the weights are bitwise equal") == 2
    for variant in ("nothing again", "ours", 'ours, checklist="off"', 'gc="sync"', 'loaders="apply"'):
        assert f"| {variant} | " in written
    assert printed.endswith("6 parts, of which 0 failed\n")


def test_without_a_gpu_it_says_what_can_be_done():
    done = gpu()
    assert done.returncode == 2
    assert "there is no GPU that torch can use; --device cpu --quick tries the rest" in done.stderr


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


def a_part(door, name, rows):
    return door.Part(name, name.title(), ("what", "value"), rows)


def bench(door, tmp_path):
    return door.Bench(torch.device("cpu"), True, tmp_path)


def breaking(_bench):
    yield "before", "1"
    raise RuntimeError("no such\nthing")


def test_a_part_that_fails_keeps_its_rows_and_the_others_go_on(door, tmp_path):
    out = tmp_path / "new" / "out.md"
    parts = [a_part(door, "first", breaking), a_part(door, "second", lambda _: [("after", "2")])]
    assert door.run(parts, bench(door, tmp_path), out) == 1
    rows = [line for line in out.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert rows == [
        *("| what | value |", "| --- | --- |", "| before | 1 |", "| failed: RuntimeError: no such |  |"),
        *("| what | value |", "| --- | --- |", "| after | 2 |"),
    ]


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
