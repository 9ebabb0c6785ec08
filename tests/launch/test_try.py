"""`perf-callbacks try`, on plain loops."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import program_environ
from trial_kit import AT_ONCE, LOOP, by_remedy, processes

from perf_callbacks.launch import tries

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only /proc shows that no process of a trial is left")


@pytest.mark.slow
def test_a_plain_loop_is_tried(tried):
    status, result, complaints = tried(AT_ONCE + LOOP + "train()\n", before=("--only", "optimizer"))
    assert status == 0, complaints
    found = by_remedy(result)
    assert [*found] == ["as it is", "optimizer"]
    assert found["optimizer"]["loss"] in {"the same", "close"}
    assert found["optimizer"]["faster"] > 0
    assert (result["failed"], result["interrupted"], result["launches"]) == ({}, False, 2)


SLOW = pytest.mark.slow


@SLOW
@pytest.mark.parametrize("ending", ["", "torch.save({}, 'model.pt')\n", "raise ValueError('boom')\n"])
def test_a_program_that_is_too_short(tried, ending):
    status, _, complaints = tried(AT_ONCE + LOOP + "train(steps=12)\n" + ending)
    assert status == 1
    told = {"": "only 12 steps", "t": "writes model.pt", "r": "ValueError: boom"}[ending[:1]]
    assert told in complaints


@SLOW
def test_a_crash_within_a_measured_loop_is_a_crash(tried):
    crash = "def stop(step):\n    if step == 60: raise ValueError('boom')\n"
    source = AT_ONCE.replace("0.0", "1000.0") + LOOP + crash + "train(each=stop)\n"
    assert "ValueError: boom" in tried(source)[2]


@SLOW
def test_a_change_that_could_not_be_made_is_no_gain(tried):
    source = AT_ONCE + LOOP + "train(torch.optim.Adadelta)\n"
    status, result, _ = tried(source, before=("--only", "optimizer"))
    assert status == 0
    assert result["failed"] == {"optimizer: fused": "nothing in the program could be changed"}
    assert [*by_remedy(result)] == ["as it is"]


@SLOW
def test_two_rounds_have_intervals_and_settings_together(tried):
    rows = LOOP.replace("        return torch.full", "        time.sleep(0.002)\n        return torch.full")
    status, result, _ = tried(AT_ONCE + rows + "train()\n", before=("--rounds", "2", "--only", "loader,threads"))
    assert status == 0
    found = by_remedy(result)
    assert found["workers"]["low"] < found["workers"]["faster"] < found["workers"]["high"]
    assert [len(one["step_seconds"]) for one in result["settings"]] == [2] * len(result["settings"])


HANGING = """
class Hangs(Rows):
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info():
            time.sleep(1000)
        return super().__getitem__(index)
Rows = Hangs if False else Rows
loading = DataLoader.__init__
def init(self, dataset, *args, **kwargs):
    loading(self, dataset, *args, **kwargs)
    if self.num_workers:
        self.dataset.__class__ = Hangs
DataLoader.__init__ = init
train()
"""


@SLOW
def test_a_setting_that_hangs_is_told_and_the_others_go_on(tried, monkeypatch):
    monkeypatch.setattr(tries, "LEAST_PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(tries, "PATIENCE", 3.0)
    status, result, _ = tried(AT_ONCE + LOOP + HANGING, before=("--only", "loader,optimizer"))
    assert status == 0
    assert [why.startswith("no end after") for why in result["failed"].values()] == [True]
    assert [*by_remedy(result)] == ["as it is", "optimizer"]


@SLOW
def test_a_program_with_its_own_callback_keeps_its_settings(tried):
    source = """
import os
from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
net = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(net.parameters())
with measure(model=net, optimizer=optimizer, config=PerfConfig(gc="freeze")) as perf:
    for step in range(10**6):
        net(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if "PERF_CALLBACKS_FLOPS" in os.environ:  # not in the probe
            assert "PERF_CALLBACKS_GC" not in os.environ, "changed"
"""
    status, result, complaints = tried(AT_ONCE + LOOP + source, before=("--only", "gc,optimizer"))
    assert status == 0, complaints
    assert [*by_remedy(result)] == ["as it is", "optimizer"]
    assert result["failed"] == {}


@SLOW
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_prints_the_results_so_far(tmp_path, scratch, number):
    (tmp_path / "train.py").write_text(AT_ONCE + LOOP + "train()\n")
    words = ["--steps", "5", "--seconds", "0.2", "--only", "optimizer,gc", "train.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "perf_callbacks", "try", *words],
        cwd=tmp_path,
        env=program_environ(TMPDIR=scratch, XDG_CACHE_HOME=str(tmp_path / "cache")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while process.poll() is None and "3" not in processes(scratch).values():
            time.sleep(0.05)
        process.send_signal(number)
        process.send_signal(number)
        output, complaints = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, complaints
    assert "as it is" in output
    assert output.endswith("interrupted.\n")
    assert processes(scratch) == {}
    assert [*Path(scratch).iterdir()] == []


@SLOW
def test_a_probe_without_a_verdict_says_why(tmp_path, scratch):
    (tmp_path / "train.py").write_text(
        AT_ONCE.replace("fit_records.ENOUGH_SECONDS = ", "") + LOOP + "train(steps=60)\n"
    )
    process = subprocess.run(
        [sys.executable, "-m", "perf_callbacks", "try", "--steps", "5", "--seconds", "0.1", "train.py"],
        cwd=tmp_path,
        env=program_environ(TMPDIR=scratch, XDG_CACHE_HOME=str(tmp_path / "cache")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "No verdict: it needs 10 s of steps and has 0." in process.stdout
