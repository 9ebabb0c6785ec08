"""Profiled steps of real trainings: a record, a trace, a line on the card, a finding, and the training is unharmed."""

import errno
import gzip
import json
import logging
import os
import signal
import subprocess
import sys

import pytest
import torch
from jobs import Job
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from trainings.doors import DOORS
from trainings.runs import records, steps

from perf_callbacks import PerfConfig
from perf_callbacks.commands import main
from perf_callbacks.kernel.process.torch_profiler import StepProfiler
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.kernel.records.rank_records import Stall, Straggler
from perf_callbacks.loop import measure
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
    return [record.getMessage() for record in caplog.records if "profile" in record.getMessage()]


def left(directory):
    """Files about profiles in the output directory."""
    return sorted([path.name for path in (directory / "perf_callbacks").iterdir() if "profile" in path.name])


def excluded(directory, rank=0):
    return [step["step"] for step in steps(directory, rank=rank) if step.get("excluded") == "profiled"]


def parents(path):
    """The path of a module and of all modules around it."""
    names = path.split(".")
    return {".".join(names[:count]) for count in range(len(names) + 1)}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """The side process may get little of a busy machine, and the training thread too."""
    monkeypatch.setattr(observer, "CLOSE_SECONDS", 120.0)
    monkeypatch.setattr("perf_callbacks.kernel.process.cpu_time.read", lambda _thread: None)


@pytest.mark.parametrize("door", DOORS)
def test_profiled_steps_leave_a_record_and_a_trace_and_change_no_loss(tmp_path, door, capsys):
    plain = DOORS[door](tmp_path / "plain").run()
    assert records(tmp_path / "plain", Profile) == []
    assert left(tmp_path / "plain") == excluded(tmp_path / "plain") == []
    profiled = tmp_path / "profiled"
    done = DOORS[door](profiled, profile="5:2").run()
    assert done.losses == plain.losses
    assert all(map(torch.equal, done.weights, plain.weights))

    (record,) = records(profiled, Profile)
    assert (record.timeline, record.steps, record.first_step) == ("cpu", 2, 5)
    assert record.operations
    assert sum(record.class_seconds.values()) == pytest.approx(record.busy_seconds)
    assert excluded(profiled) == [5, 6]
    assert left(profiled) == [record.trace] == ["profile0-5.json.gz"]
    counted = {module.path for module in records(profiled, Flops)[-1].modules}
    assert {*record.heaviest_modules()} <= {path for module in counted for path in parents(module)}
    assert any(
        record.module_backward_seconds[path] > 0 for path in counted.intersection(record.module_backward_seconds)
    )
    assert "(optimizer)" not in record.module_backward_seconds
    assert nn.Module.__call__ is CALL
    trace = json.loads(gzip.decompress((profiled / "perf_callbacks" / record.trace).read_bytes()))
    assert {"ProfilerStep#5", "ProfilerStep#6"} <= {event["name"] for event in trace["traceEvents"]}
    assert "profile from step 5: Operations ran for" in cards.closing(done.summary)
    assert done.summary.profiles[0].module_seconds == record.heaviest_modules()
    capsys.readouterr()
    assert main(["profile", str(profiled)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("rank 0, steps 5 to 6: profile0-5.json.gz\nOperations ran for")
    assert "Modules (share of busy time" in shown
    assert "FLOPs executed" in shown
    assert not torch.autograd._profiler_enabled()


def test_without_a_profile_the_journal_says_nothing_of_it(tmp_path):
    DOORS["loop"](tmp_path / "unset").run()
    DOORS["loop"](tmp_path / "off", profile="off").run()
    for name in ("unset", "off"):
        first, *others = (tmp_path / name / "perf_callbacks/rank0.jsonl").read_text().splitlines()
        assert json.loads(first)["config"]["profile"] == "off"
        assert not [line for line in others if "profile" in line]
    assert left(tmp_path / "off") == []


@pytest.mark.parametrize(
    ("setting", "every", "profiled"),
    [
        pytest.param("2:1", None, [3], id="after the counted step"),
        pytest.param("5:2", 4, [6, 7], id="delayed by an evaluation"),
        pytest.param("4:2", 4, [4], id="ended by an evaluation"),
        pytest.param("7:9", None, [7, 8], id="ended by the fit"),
    ],
)
def test_a_profile_has_undisturbed_steps_alone(tmp_path, setting, every, profiled):
    DOORS["loop"](tmp_path, profile=setting, evaluate=every, save=every).run()
    (record,) = records(tmp_path, Profile)
    assert [*range(record.first_step, record.first_step + record.steps)] == profiled
    assert every or excluded(tmp_path) == profiled


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
        on_trace_ready=lambda trace: seen.append(len(trace.key_averages())),
        acc_events=True,
    )
    with theirs:
        DOORS["loop"](tmp_path, after_step=lambda _: theirs.step(), profile="5:3").run()
    assert len(seen) == 1
    assert seen[0] > 10
    assert records(tmp_path, Profile) == []
    assert len(lines(caplog)) == 1


def failing(method):
    def install(monkeypatch):
        original = getattr(StepProfiler, method)

        def fail(self, *args):
            if method in {"start", "stop"}:
                original(self, *args)
            raise RuntimeError("no profiler")

        monkeypatch.setattr(StepProfiler, method, fail)

    return install


def full_disk(monkeypatch):
    def export(_self, path):
        path.write_text('{"traceEvents": [')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(StepProfiler, "export", export)


def torn_trace(monkeypatch):
    monkeypatch.setattr(StepProfiler, "export", lambda _, path: path.write_text('{"traceEvents": ['))


def killed_reducer(monkeypatch):
    processes, start, send = [], subprocess.Popen, Reducer.send

    def kill_and_send(self, *job):
        os.killpg(processes[-1].pid, signal.SIGKILL)
        send(self, *job)

    monkeypatch.setattr(
        subprocess, "Popen", lambda *words, **more: processes.append(start(*words, **more)) or processes[-1]
    )
    monkeypatch.setattr(Reducer, "send", kill_and_send)


STOPPED = "no profile, training goes on: "
FAULTS = {
    **{
        f"{name} fails": (failing(name), f"{STOPPED}RuntimeError: no profiler")
        for name in ("start", "mark", "stop", "export")
    },
    "full disk": (full_disk, "No space left on device"),
    "torn trace": (torn_trace, "no trace of torch.profiler can be read"),
    "large trace": (lambda monkeypatch: monkeypatch.setattr(observer, "MOST_BYTES", 1000), "MB, more than 0 MB"),
    "killed reducer": (killed_reducer, STOPPED),
    "no Python": (
        lambda monkeypatch: monkeypatch.setattr(sys, "executable", "/nowhere/python"),
        f"{STOPPED}FileNotFoundError",
    ),
}


@pytest.mark.parametrize(("fault", "text"), FAULTS.values(), ids=FAULTS)
def test_a_profile_that_fails_is_a_line_in_the_log_and_no_harm(tmp_path, caplog, monkeypatch, fault, text):
    fault(monkeypatch)
    done = DOORS["loop"](tmp_path, profile="4:2").run()
    assert len(done.losses) == 8
    assert not done.summary.failure
    assert not done.summary.profiles
    assert records(tmp_path, Profile) == []
    assert [record.levelno for record in caplog.records if "profile" in record.getMessage()] == [logging.WARNING]
    assert text in lines(caplog)[0]
    assert fault is torn_trace or left(tmp_path) == []  # a trace that can't be read stays
    assert not torch.autograd._profiler_enabled()


class Transposing(nn.Module):
    """Model that mostly copies."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(500, 600))

    def forward(self):
        x = self.weight
        for _ in range(10):
            x = x.t().contiguous().t().contiguous()
        return x.mean()


def test_copies_in_a_profile_are_a_finding_with_their_operation(tmp_path):
    model = Transposing()
    optimizer, config = torch.optim.SGD(model.parameters(), lr=0.1), PerfConfig(output_dir=str(tmp_path), profile="5:2")
    with measure(model=model, optimizer=optimizer, config=config) as perf:
        for _ in range(14):
            model().backward()
            optimizer.step()
            optimizer.zero_grad()
    (profile,) = records(tmp_path, Profile)
    (finding,) = [finding for finding in perf.summary.findings if finding.cause == "copy"]
    assert 0 < finding.share <= sum([copy.seconds for copy in profile.copies]) / profile.span_seconds
    assert "of 2 profiled steps: aten::contiguous, " in finding.evidence
    assert finding in records(tmp_path, Finding)


TRAIN = """
import time
import torch
from torch.nn.parallel import DistributedDataParallel
from jobs.rank import plan
from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
from perf_callbacks.profiles import observer
observer.CLOSE_SECONDS = 120.0
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
rank = torch.distributed.get_rank()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config = PerfConfig(output_dir=plan()["directory"], window=10, profile="auto", gc="observe", stall_after="20")
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
    Job(TRAIN, tmp_path).to_its_end()
    assert records(tmp_path, Profile) == []
    (record,) = records(tmp_path, Profile, rank=1)
    assert record.steps == 3
    assert left(tmp_path) == [f"profile1-{record.first_step}.json.gz"]
    assert excluded(tmp_path) == excluded(tmp_path, rank=1) == [*range(record.first_step, record.first_step + 4)]
    slow = [straggler for straggler in records(tmp_path, Straggler) if straggler.step > 100]
    # a busy machine may take a CPU from any rank
    assert {straggler.rank for straggler in slow if straggler.cause != "steal"} == {1}
    assert not [straggler for straggler in slow if straggler.step in excluded(tmp_path) and straggler.steps == 1]
    assert records(tmp_path, Stall) == records(tmp_path, Stall, rank=1) == []
