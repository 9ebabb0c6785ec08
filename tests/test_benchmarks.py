"""Benchmarks can be started; the one for GPUs runs in a small form, and killed runs keep their promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("*.py"))

pytestmark = pytest.mark.slow


def run(*words):
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *words], env=environ, cwd=BENCHMARKS, timeout=280, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_script_imports_existing_names():
    assert len(SCRIPTS) <= 25
    names = ", ".join([path.stem for path in SCRIPTS])
    run("-c", f"import doors.accelerate, doors.lightning, doors.loop, doors.transformers, {names}")


@pytest.mark.parametrize("kind", ["cpu", "sim"])
def test_each_part_of_the_gpu_benchmark_runs_without_a_gpu(kind):
    printed = run("gpu.py", "--device", kind, "--quick")

    assert printed.endswith("8 parts, of which 0 failed\n")
    assert "6 of 6 losses and the weights are bitwise equal" in printed


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_killed_run_leaves_all_steps_but_the_last_five_seconds():
    assert "4 of 4 journals" in run("killed.py", "--moments", "4", "--within", "12")
