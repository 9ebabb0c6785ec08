"""The command for events in real fits, also in those that are killed; a bad command changes nothing."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
from jobs import IMPORTS, Job, until
from trainings.doors import DOORS

from perf_callbacks.notifications import sender

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="on_event runs no command on Windows, and says so")


def commanded(monkeypatch, directory, command="cat >> {file}"):
    file = directory / "events.jsonl"
    monkeypatch.setenv("PERF_CALLBACKS_ON_EVENT", f"sh -c '{command.format(file=file)}'")
    file.touch()
    return lambda: [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def end_passed(events):
    """Whether the last event has reached the command."""
    return bool(events()) and events()[-1]["event"] == "end"


def test_the_end_of_a_fit_is_passed_on(tmp_path, monkeypatch):
    events = commanded(monkeypatch, tmp_path)
    done = DOORS["loop"](tmp_path).run()
    until(lambda: end_passed(events))
    (end,) = events()
    assert (end["end"]["state"], end["step"], end["run_id"]) == ("ended", 8, done.summary.run_id)
    assert (tmp_path / end["output_dir"]).is_dir()


BAD = {
    "hangs": ("sleep 1000", "took longer than 0.3 s and was killed"),
    "fails": ("exit 3", "ended with status 3"),
    "floods": ("cat /dev/zero >&2", "took longer than 0.3 s and was killed"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_command_changes_no_training_and_is_told_of_once(tmp_path, monkeypatch, caplog, how):
    command, trouble = BAD[how]
    plain = DOORS["transformers"](tmp_path / "plain").run()
    commanded(monkeypatch, tmp_path, command)
    monkeypatch.setattr(sender.Sender.__init__, "__defaults__", (0.3,))
    done = DOORS["transformers"](tmp_path / "bad").run()
    until(lambda: any("ON_EVENT" in text for text in caplog.messages))
    assert done.losses == plain.losses
    assert all(map(torch.equal, done.weights, plain.weights))
    assert [text for text in caplog.messages if "ON_EVENT" in text] == [
        f"perf_callbacks: the command of PERF_CALLBACKS_ON_EVENT {trouble}. Training goes on."
    ]


def test_a_stall_is_passed_on_with_its_stack_and_again_when_it_is_over(tmp_path, monkeypatch):
    events = commanded(monkeypatch, tmp_path)

    def hang(step):
        if step == 5:
            until(lambda: [event["event"] for event in events()] == ["stall"])

    DOORS["loop"](tmp_path, after_step=hang, stall_after="1").run()
    until(lambda: end_passed(events))
    began, ended, end = events()
    assert began["stall"]["under_way"]
    assert any("test_on_event.py" in frame for frame in began["stall"]["stack"])
    assert "no step for" in began["text"]
    assert (ended["event"], ended["stall"]["under_way"]) == ("stall", False)
    assert ended["stall"]["seconds"] >= began["stall"]["seconds"]
    assert end["event"] == "end"


def test_the_script_of_the_page_appends_sentences(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
    script = re.search(r"```sh\n(# notify\.sh\n.*?)```", page, re.DOTALL)[1]
    setting = re.search(r"export PERF_CALLBACKS_ON_EVENT='(.*)'", page)[1]
    (tmp_path / "notify.sh").write_text(script, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERF_CALLBACKS_ON_EVENT", setting)
    DOORS["loop"](tmp_path).run()
    until((tmp_path / "events.txt").exists)
    until(lambda: ": ended after step 8 and " in (tmp_path / "events.txt").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("door", ["loop", "accelerate", "transformers", "lightning"])
def test_a_run_that_is_killed_is_told_of(tmp_path, door, number):
    plan = {"door": door, "measured": True}
    file = tmp_path / "events.jsonl"
    environ = {"PERF_CALLBACKS_ON_EVENT": f"sh -c 'cat >> {file}'"}
    with Job("killed.py", tmp_path, imports=IMPORTS[door], world_size=1, plan=plan, environ=environ) as job:
        job.until((tmp_path / "trains").exists)
        job.until((tmp_path / "perf_callbacks" / "rank0.jsonl").exists)
        os.kill(job.processes[0].pid, number)
        job.processes[0].wait()
    until(file.exists)
    until(lambda: file.read_text().endswith("\n"))
    (end,) = [json.loads(line) for line in file.read_text().splitlines()]
    in_order = door == "lightning" and number == signal.SIGTERM  # Lightning ends the training itself
    assert end["end"]["state"] in ({"ended", "failed"} if in_order else {"lost"})


@pytest.mark.slow
def test_a_job_passes_on_a_stall_and_its_death_once(tmp_path):
    file = tmp_path / "events.jsonl"
    environ = {"PERF_CALLBACKS_ON_EVENT": f"sh -c 'cat >> {file}'"}
    with Job(Path(__file__).with_name("test_stall_ranks.py"), tmp_path, plan={"case": "lock"}, environ=environ):
        until(file.exists)
    until(lambda: '"lost"' in file.read_text())
    stall, end = [json.loads(line) for line in file.read_text().splitlines()]
    assert "Rank 1 is in forward: test_stall_ranks.py:" in stall["text"]
    assert (stall["event"], stall["rank"], stall["world_size"], stall["stall"]["under_way"]) == ("stall", 0, 2, True)
    assert (end["event"], end["rank"], end["end"]["state"]) == ("end", 0, "lost")
