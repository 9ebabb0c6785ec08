"""The public names have the types that a user's checker expects of them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUBLIC = ROOT / "tests" / "typing" / "public.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "checker",
    [["mypy", "--strict"], ["pyright", "--pythonpath", sys.executable]],
    ids=lambda checker: checker[0],
)
def test_a_type_checker_agrees(checker):
    command = [sys.executable, "-m", *checker, str(PUBLIC)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
