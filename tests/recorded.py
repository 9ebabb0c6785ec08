"""Recorded runs on disk, looked at by a clock that stands still."""

import os
from pathlib import Path

from journals import FINDING, a_fit, a_summary, write

from perf_callbacks.kernel.fit import chain
from perf_callbacks.kernel.records import interim
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.machine_records import Use
from perf_callbacks.kernel.records.rank_records import Stall
from perf_callbacks.report import run_reader

NOW, LASTS = 2_000_000.0, 14.0


NO_PROCESS = 2**22 + 1
"""Larger than all ids of processes on Linux."""


def process(pid):
    """The fields of `run` about a process of this machine, which began before this moment."""
    about = chain.uptime() | {"pid": pid, "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino}
    assert about["boot_id"]
    return about


def stand_still(monkeypatch):
    """A clock that stands still, and no locks."""
    monkeypatch.setattr(run_reader, "unix_time", lambda: NOW)
    monkeypatch.setattr(run_reader, "read_locks", dict)


def a_recorded(directory, *, ended=True, age=5.0, ranks=1, so_far=None, hangs=False, **run):
    """A run whose last record was written some seconds ago."""
    usual = {"run_id": "a1", "started_unix": NOW - age - LASTS, "program": "jobs/train.py", "model": "Llama"}
    usual |= {"host": "node7", "world_size": ranks} | run
    last = [Use(step=20)]
    if hangs:
        last = [Stall(step=20, rank=0, stage="data", since_seconds=61.0, stack=("loader.py:41 next",))]
    if ended:
        last = [FINDING, a_summary(run_id=usual["run_id"])]
    journals = [a_fit(rank, summary=False, **usual) for rank in range(ranks)]
    write(directory, *[[*journal, *[Entry(LASTS, one) for one in last]] for journal in journals])
    folder = directory / "perf_callbacks"
    for path in folder.glob("*.jsonl") if so_far is not None else ():
        interim.write(path, Entry(LASTS, so_far))
    for path in folder.iterdir():
        os.utime(path, (NOW - age, NOW - age))
