"""Real runs in `perf-callbacks show`: while they run, and after they were killed."""

import json
import os
import sys

import pytest
import torch
from jobs import Job
from torch import nn

from perf_callbacks import PerfConfig
from perf_callbacks.commands import main
from perf_callbacks.kernel.records.signs_of_life import read_locks
from perf_callbacks.loop import measure
from perf_callbacks.report import run_reader


def shown(capsys, *words):
    capsys.readouterr()
    assert main(["show", *map(str, words)]) == 0
    return capsys.readouterr().out


def look(monkeypatch, directory, *, seconds):
    """Set the clock of the command to some seconds after the last write."""
    written = max(path.stat().st_mtime for path in (directory / "perf_callbacks").iterdir())
    monkeypatch.setattr(run_reader, "unix_time", lambda: written + seconds)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL, after which a run leaves no summary")
def test_a_run_is_running_until_it_is_killed(tmp_path, capsys, monkeypatch):
    directory = tmp_path / "run"
    plan = {"door": "loop", "measured": True}
    with Job("killed.py", directory, world_size=1, plan=plan) as job:
        job.until((directory / "perf_callbacks/summary0.json").exists)
        look(monkeypatch, directory, seconds=5.0)
        running = json.loads(shown(capsys, directory, "--json"))
    (process,) = job.processes
    assert (running["state"], running["stall"]) == ("running", None)
    assert running["pid"] in {process.pid, None}
    assert running["title"].startswith("killed.py · Model · on ")
    assert running["summary"]["run_id"] == running["run"]["run_id"]

    look(monkeypatch, directory, seconds=5.0 if sys.platform == "linux" else 60.0)
    killed = json.loads(shown(capsys, directory, "--json"))
    assert (killed["state"], killed["pid"]) == ("silent", None)
    assert killed["step"] >= running["step"]
    card = " ".join(shown(capsys, directory).split())
    assert card.startswith("no sign of life since ")
    gone = f"(5.00 s ago): process {process.pid} is gone: it was killed, crashed, or ended while its disk was full"
    assert (gone if sys.platform == "linux" else "(60.0 s ago): killed, or its machine is gone") in card
    assert "perf_callbacks: " in card


def test_a_fit_that_goes_on_is_locked_by_this_process(tmp_path, capsys):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with measure(model=net, optimizer=optimizer, config=PerfConfig(output_dir=str(tmp_path))):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        listed = bool(read_locks())  # of no lock on some systems
        assert f" as process {os.getpid()}" in shown(capsys, tmp_path) or not listed
    assert " as process " not in shown(capsys, tmp_path)
