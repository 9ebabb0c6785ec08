"""Every example runs as it is: on a CPU, offline, from any directory."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem == "transformers_llama"))
        for path in EXAMPLES
    ],
)
def test_an_example_runs_and_says_what_it_measured(tmp_path, example):
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, timeout=900, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "perf_callbacks: " in done.stdout + done.stderr
    assert list(tmp_path.rglob("rank0.jsonl"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_under_forty_lines(example):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 40
