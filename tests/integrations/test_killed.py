"""A run that is killed, in each integration: it dies as without the callback, and its findings are on disk."""

import json
import signal
import time

import pytest
from forked import start
from jobs import IMPORTS

from perf_callbacks.report import report_file
from perf_callbacks.report.payload import payload

PROMPT = 120.0
"""Seconds in which anything happens, on a busy machine."""

TERM, KILL = int(signal.SIGTERM), int(signal.SIGKILL)

IN_ORDER = {"lightning"}
"""Integrations whose framework ends training in order after SIGTERM, and so calls the callback."""

CASES = {
    f"{door}, {moment}, {number.name}": (door, moment, number)
    for door, moment, number in [
        ("loop", "step", signal.SIGTERM),
        ("loop", "step", signal.SIGKILL),
        ("loop", "C", signal.SIGTERM),
        ("accelerate", "step", signal.SIGTERM),
        ("accelerate", "C", signal.SIGTERM),
        ("transformers", "step", signal.SIGTERM),
        ("transformers", "C", signal.SIGKILL),
        ("lightning", "step", signal.SIGTERM),
        ("lightning", "C", signal.SIGTERM),
        ("lightning", "step", signal.SIGKILL),
    ]
}


def run(directory, door, moment, *, measured):
    plan = {"door": door, "moment": moment, "directory": str(directory), "measured": measured}
    directory.mkdir()
    return start(
        "killed_run.py",
        json.dumps(plan),
        imports=IMPORTS[door],
        environ={},
        output=directory / "out",
        errors=directory / "err",
    )


def until(condition, process, directory):
    deadline = time.monotonic() + PROMPT
    while not condition():
        assert process.poll() is None, (directory / "err").read_text()
        assert time.monotonic() < deadline, (directory / "err").read_text()
        time.sleep(0.05)


def steps_so_far(directory):
    path = directory / "perf_callbacks" / "summary0.json"
    return json.loads(path.read_text())["included_steps"] if path.exists() else 0


def killed(directory, door, moment, number, *, measured):
    """The exit status of a run that was killed, once the summary so far has some steps."""
    process = run(directory, door, moment, measured=measured)
    try:
        trained = directory / "trains"
        until(trained.exists, process, directory)
        if measured:
            until(lambda: steps_so_far(directory) >= 20, process, directory)
        if moment == "C":
            (directory / "hold").touch()
            until((directory / "held").exists, process, directory)
        process.send_signal(number)
        return process.wait(PROMPT)
    finally:
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_run_dies_as_without_the_callback_and_its_findings_are_on_disk(tmp_path, case):
    door, moment, number = CASES[case]
    status = killed(tmp_path / "measured", door, moment, number, measured=True)
    assert status == (killed(tmp_path / "plain", door, moment, number, measured=False))
    (fit,) = report_file.fits(tmp_path / "measured")
    in_order = door in IN_ORDER and number == signal.SIGTERM
    assert (fit.first[-1].interim is None) == in_order
    assert "Waiting for data took " in payload([fit])["verdict"]
    assert fit.summary.findings[0].cause == "data"
    said = (tmp_path / "measured" / "out").read_text()
    assert ("Waiting for data took" in said) == in_order
