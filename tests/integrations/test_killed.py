"""A run that is killed, in each integration: it dies as without the callback, and its findings are on disk."""

import json
import signal

import pytest
from jobs import IMPORTS, PROMPT, Job

from perf_callbacks.report import report_file
from perf_callbacks.report.payload import payload

CASES = [
    ("loop", "step", signal.SIGTERM),
    ("loop", "step", signal.SIGKILL),
    ("loop", "C", signal.SIGTERM),
    ("accelerate", "step", signal.SIGTERM),
    ("transformers", "step", signal.SIGTERM),
    ("transformers", "C", signal.SIGKILL),
    ("lightning", "step", signal.SIGTERM),
    ("lightning", "C", signal.SIGTERM),
]


def steps_so_far(directory):
    path = directory / "perf_callbacks" / "summary0.json"
    return json.loads(path.read_text())["included_steps"] if path.exists() else 0


def killed(directory, door, moment, number, *, measured):
    """The exit status of a run that was killed, once the summary so far has some steps."""
    plan = {"door": door, "measured": measured}
    with Job("killed.py", directory, imports=IMPORTS[door], world_size=1, plan=plan) as job:
        job.until((directory / "trains").exists)
        if measured:
            job.until(lambda: steps_so_far(directory) >= 20)
        if moment == "C":
            (directory / "hold").touch()
            job.until((directory / "held").exists)
        job.processes[0].send_signal(number)
        return job.processes[0].wait(PROMPT)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The exit status of a run without the callback; each kind is killed once."""
    statuses = {}

    def status(*case):
        if case not in statuses:
            statuses[case] = killed(tmp_path_factory.mktemp("plain"), *case, measured=False)
        return statuses[case]

    return status


@pytest.mark.slow
@pytest.mark.parametrize(("door", "moment", "number"), CASES)
def test_a_run_dies_as_without_the_callback_and_its_findings_are_on_disk(tmp_path, plain, door, moment, number):
    assert killed(tmp_path, door, moment, number, measured=True) == plain(door, "step", number)
    (fit,) = report_file.fits(tmp_path)
    in_order = door == "lightning" and number == signal.SIGTERM  # Lightning ends the training itself
    assert (fit.first[-1].interim is None) == in_order
    assert "Waiting for data took " in payload([fit])["verdict"]
    assert fit.summary.findings[0].cause == "data"
    assert ("Waiting for data took" in (tmp_path / "rank0.out").read_text()) == in_order
