"""Profiled steps of real trainings: a record, a trace and a line on the card, and the training is unharmed."""

import errno
import gzip
import json
import logging
import os
import signal
import sys

import pytest
import torch
from launching import run_ranks
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from trainings.doors import DOORS
from trainings.runs import records, steps

from perf_callbacks import session
from perf_callbacks.commands import main
from perf_callbacks.kernel.process.torch_profiler import StepProfiler
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.kernel.records.rank_records import Stall, Straggler
from perf_callbacks.profiles import observer
from perf_callbacks.profiles.reducer import Reducer
from perf_callbacks.report import cards

pytestmark = [
    pytest.mark.usefixtures("accelerate_state"),
    pytest.mark.skipif(
        not hasattr(os, "fork"),
        reason="no side process without fork: `why_not` says so, and a test of it runs everywhere",
    ),
]


CALL = nn.Module.__call__


def lines(caplog):
    return [one.getMessage() for one in caplog.records if "profile" in one.getMessage()]


def left(directory):
    """Files about profiles in the output directory."""
    return sorted([one.name for one in (directory / "perf_callbacks").iterdir() if "profile" in one.name])


def excluded(directory, rank=0):
    return [one["step"] for one in steps(directory, rank=rank) if one.get("excluded") == "profiled"]


def parents(path):
    """The path of a module and of all modules around it."""
    names = path.split(".")
    return {".".join(names[:count]) for count in range(len(names) + 1)}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """The side process may get little of a busy machine."""
    monkeypatch.setattr(observer, "CLOSE_SECONDS", 120.0)


@pytest.mark.parametrize("door", DOORS)
def test_every_integration_profiles_two_steps(tmp_path, door, capsys):
    done = DOORS[door](tmp_path, profile="5:2").run()
    (found,) = records(tmp_path, Profile)
    assert (found.timeline, found.steps, found.first_step) == ("cpu", 2, 5)
    assert found.operations
    assert sum(found.class_seconds.values()) == pytest.approx(found.busy_seconds)
    assert excluded(tmp_path) == [5, 6]
    assert left(tmp_path) == [found.trace] == ["profile0-5.json.gz"]
    counted = {one.path for one in records(tmp_path, Flops)[-1].modules}
    within = {path for one in counted for path in parents(one)}
    assert {*found.heaviest_modules()} <= within
    assert any(found.module_backward_seconds[path] > 0 for path in counted.intersection(found.module_backward_seconds))
    assert "(optimizer)" not in found.module_backward_seconds
    assert nn.Module.__call__ is CALL
    events = json.loads(gzip.decompress((tmp_path / "perf_callbacks/profile0-5.json.gz").read_bytes()))["traceEvents"]
    assert {"ProfilerStep#5", "ProfilerStep#6"} <= {one["name"] for one in events}
    assert "profile from step 5: Operations ran for" in cards.closing(done.summary)
    assert done.summary.profiles[0].module_seconds == found.heaviest_modules()
    capsys.readouterr()
    assert main(["profile", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("rank 0, steps 5 to 6: profile0-5.json.gz\nOperations ran for")
    assert "Modules (share of busy time" in shown
    assert "FLOPs executed" in shown
    assert not torch.autograd._profiler_enabled()


BY_THE_CLOCK = {"finding", "gc", "straggler", "use"}


def journal(directory):
    """Records in order. Records and findings that depend on times are left out."""
    lines = (directory / "perf_callbacks/rank0.jsonl").read_text().splitlines()
    found = [one for one in map(json.loads, lines) if one["type"] not in BY_THE_CLOCK]
    return [{name: one[name] for name in one if name != "findings"} for one in found]


def keys(value):
    """All keys of records, at any depth."""
    if isinstance(value, dict):
        return [*value, *[key for one in value.values() for key in keys(one)]]
    return [key for one in value for key in keys(one)] if isinstance(value, list) else []


@pytest.mark.parametrize("door", DOORS)
def test_a_run_with_profile_off_writes_the_journal_of_a_run_without_the_feature(tmp_path, door, monkeypatch):
    DOORS[door](tmp_path / "unset").run()
    DOORS[door](tmp_path / "off", profile="off").run()
    monkeypatch.setattr(session, "OBSERVERS", [one for one in session.OBSERVERS if one is not observer.begin])
    DOORS[door](tmp_path / "without").run()
    unset, off, without = [journal(tmp_path / name) for name in ("unset", "off", "without")]
    assert [[*one] for one in unset] == [[*one] for one in off] == [[*one] for one in without]
    assert unset[0].pop("config")["profile"] == off[0].pop("config")["profile"] == "off"
    assert not [key for key in keys([unset, off]) if "profile" in key]
    assert left(tmp_path / "unset") == left(tmp_path / "off") == []


@pytest.mark.parametrize("door", DOORS)
def test_losses_and_weights_are_bitwise_the_same(tmp_path, door):
    plain = DOORS[door](tmp_path / "plain").run()
    profiled = DOORS[door](tmp_path / "profiled", profile="4:3").run()
    assert plain.losses == profiled.losses
    assert all(map(torch.equal, plain.weights, profiled.weights))
    assert records(tmp_path / "plain", Profile) == []
    assert excluded(tmp_path / "plain") == []


def test_a_counted_step_is_never_profiled(tmp_path):
    DOORS["loop"](tmp_path, profile="2:1").run()
    assert excluded(tmp_path) == [3]


def test_an_evaluation_ends_or_delays_a_profile(tmp_path):
    DOORS["loop"](tmp_path / "delayed", profile="5:2", evaluate=4, save=4).run()
    (found,) = records(tmp_path / "delayed", Profile)
    assert (found.first_step, found.steps) == (6, 2)
    DOORS["loop"](tmp_path / "short", profile="4:2", evaluate=4, save=4).run()
    (found,) = records(tmp_path / "short", Profile)
    assert (found.first_step, found.steps) == (4, 1)


def test_the_end_of_the_fit_ends_a_profile(tmp_path):
    DOORS["loop"](tmp_path, profile="7:9").run()
    (found,) = records(tmp_path, Profile)
    assert (found.first_step, found.steps) == (7, 2)


def test_without_a_journal_nothing_is_profiled(tmp_path, caplog):
    DOORS["loop"](tmp_path, profile="5:2", journal=False).run()
    assert lines(caplog) == ["perf_callbacks: `profile` has no effect: there is no journal."]


def test_a_profiler_of_the_program_goes_first(tmp_path, caplog):
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as theirs:
        DOORS["loop"](tmp_path, profile="5:2").run()
    assert theirs.key_averages()
    assert records(tmp_path, Profile) == []
    assert lines(caplog) == ["perf_callbacks: no profile, training goes on: another profiler is active."]


@pytest.mark.parametrize("plan", [{"wait": 4, "warmup": 1, "active": 2}, {"wait": 2, "warmup": 3, "active": 2}])
def test_a_profiler_that_the_program_begins_later_works(tmp_path, caplog, plan):
    seen = []
    theirs = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(**plan, repeat=1),
        on_trace_ready=lambda one: seen.append(len(one.key_averages())),
        acc_events=True,
    )
    with theirs:
        DOORS["loop"](tmp_path, after_step=lambda _: theirs.step(), profile="5:3").run()
    assert len(seen) == 1
    assert seen[0] > 10
    assert records(tmp_path, Profile) == []
    assert len(lines(caplog)) == 1


def harmless(tmp_path, caplog, text):
    """One line is logged, no file is left, and the training learns as without a profile."""
    done = DOORS["loop"](tmp_path, profile="4:2").run()
    assert len(done.losses) == 8
    assert not done.summary.failure
    assert not done.summary.profiles
    assert [one.levelno for one in caplog.records if "profile" in one.getMessage()] == [logging.WARNING]
    assert text in lines(caplog)[0]
    assert left(tmp_path) == []
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize("method", ["start", "mark", "stop", "export"])
def test_a_failing_profiler_is_one_line(tmp_path, caplog, monkeypatch, method):
    original, failed = getattr(StepProfiler, method), []

    def fail(self, *args):
        if method in {"start", "stop"}:
            original(self, *args)
        failed.append(method)
        raise RuntimeError("no profiler")

    monkeypatch.setattr(StepProfiler, method, fail)
    harmless(tmp_path, caplog, "no profile, training goes on: RuntimeError: no profiler")
    assert failed


def test_a_full_disk_is_one_line(tmp_path, caplog, monkeypatch):
    def export(_self, path):
        path.write_text('{"traceEvents": [')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(StepProfiler, "export", export)
    harmless(tmp_path, caplog, "No space left on device")


def test_a_torn_trace_is_one_line(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(StepProfiler, "export", lambda _, path: path.write_text('{"traceEvents": ['))
    done = DOORS["loop"](tmp_path, profile="4:2").run()
    assert len(done.losses) == 8
    assert "no trace of torch.profiler can be read" in lines(caplog)[0]
    assert records(tmp_path, Profile) == []


def test_a_large_trace_is_one_line(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(observer, "MOST_BYTES", 1000)
    harmless(tmp_path, caplog, "MB, more than 0 MB")


def test_a_killed_reducer_is_one_line(tmp_path, caplog, monkeypatch):
    original = Reducer.send

    def send(self, *job):
        os.killpg(self._process.pid, signal.SIGKILL)
        original(self, *job)

    monkeypatch.setattr(Reducer, "send", send)
    harmless(tmp_path, caplog, "no profile, training goes on: ")


def test_a_side_process_that_cannot_start_is_one_line(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    harmless(tmp_path, caplog, "no profile, training goes on: FileNotFoundError")


TRAIN = """
import sys, time
import torch
from torch.nn.parallel import DistributedDataParallel
from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
from perf_callbacks.profiles import observer
observer.CLOSE_SECONDS = 120.0
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
rank = torch.distributed.get_rank()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config = PerfConfig(output_dir=sys.argv[1], window=10, profile="auto", gc="observe", stall_after="20")
with measure(model=model, optimizer=optimizer, loader=[torch.ones(8, 64)] * 400, config=config) as perf:
    for step, batch in enumerate(perf.loader, 1):
        time.sleep(0.01)
        if step > 100 and rank == 1:
            time.sleep(0.03)
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_rank_that_becomes_slow_is_profiled_and_its_delay_is_no_fault(tmp_path):
    assert run_ranks(TRAIN, tmp_path) == [0, 0]
    assert records(tmp_path, Profile) == []
    (found,) = records(tmp_path, Profile, rank=1)
    assert found.steps == 3
    assert left(tmp_path) == [f"profile1-{found.first_step}.json.gz"]
    assert excluded(tmp_path) == excluded(tmp_path, rank=1) == [found.first_step + more for more in range(4)]
    slow = [one for one in records(tmp_path, Straggler) if one.step > 100]
    assert {one.rank for one in slow if one.cause != "steal"} == {1}  # a busy machine may take a CPU from any rank
    assert not [one for one in slow if one.step in excluded(tmp_path) and one.steps == 1]
    assert records(tmp_path, Stall) == records(tmp_path, Stall, rank=1) == []
