"""The process beside the training ends with the fit, and is the first to die if memory runs out."""

import os
from pathlib import Path

import pytest
from jobs import until

from perf_callbacks.profiles.reducer import Reducer

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="another system than Linux"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture
def reducer():
    found = Reducer()
    until(lambda: found.process.poll() is not None)  # the side process has another parent now
    yield found
    found.dismiss()


def session(reducer):
    """Processes of the reducer's session."""
    found = []
    for pid in [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()]:
        try:
            if os.getsid(pid) == reducer.process.pid:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found


def score(pid):
    try:
        return Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
    except OSError:
        return None


def test_the_side_process_dies_first_if_memory_runs_out(reducer):
    until(lambda: "1000" in [score(pid) for pid in session(reducer)])


def test_a_forked_worker_does_not_keep_the_side_process(reducer):
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    try:
        reducer.dismiss()
        until(lambda: not session(reducer))
    finally:
        os.close(theirs)
        os.close(ours)
        os.waitpid(child, 0)
