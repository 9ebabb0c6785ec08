"""The command for events in real fits: each integration passes on the end, and a bad command changes nothing."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
from forked import ranks, start
from jobs import IMPORTS
from trainings.doors import DOORS
from waiting import until

from perf_callbacks import ConfigError, PerfConfig
from perf_callbacks.lightning import PerfCallback as LightningCallback
from perf_callbacks.loop import measure
from perf_callbacks.notifications import sender
from perf_callbacks.transformers import PerfCallback as HuggingFaceCallback

pytestmark = [
    pytest.mark.usefixtures("accelerate_state"),
    pytest.mark.skipif(sys.platform == "win32", reason="on_event runs no command on Windows, and says so"),
]


def over():
    """Whether all side processes of this process have ended."""
    return not [one for one in [*sender._all] if one.tick(0.0)]


def commanded(monkeypatch, directory, command="cat >> {file}"):
    file = directory / "events.jsonl"
    monkeypatch.setenv("PERF_CALLBACKS_ON_EVENT", f"sh -c '{command.format(file=file)}'")
    return lambda: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("door", DOORS)
def test_each_integration_passes_on_the_end_of_a_fit(tmp_path, monkeypatch, door):
    events = commanded(monkeypatch, tmp_path)
    done = DOORS[door](tmp_path).run()
    until(over)
    (end,) = events()
    assert (end["event"], end["end"]["state"], end["step"]) == ("end", "ended", 8)
    assert end["run_id"] == done.summary.run_id
    assert (tmp_path / end["output_dir"]).is_dir()


@pytest.mark.parametrize("door", DOORS)
def test_each_integration_passes_on_a_failure(tmp_path, monkeypatch, door):
    events = commanded(monkeypatch, tmp_path)

    def after_step(step):
        if step == 3:
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        DOORS[door](tmp_path, after_step=after_step).run()
    until(lambda: [event["event"] for event in events()] == ["end"])
    (end,) = events()
    assert end["end"]["state"] == "failed"
    assert "boom" in end["text"]


BAD = {
    "hangs": ("sleep 1000", "took longer than 0.3 s and was killed"),
    "fails": ("exit 3", "ended with status 3"),
    "floods": ("cat /dev/zero >&2", "took longer than 0.3 s and was killed"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_command_changes_no_training_and_is_told_of_once(tmp_path, monkeypatch, caplog, how):
    command, said = BAD[how]
    plain = DOORS["transformers"](tmp_path / "plain").run()
    commanded(monkeypatch, tmp_path, command)
    monkeypatch.setattr(sender.Sender.__init__, "__defaults__", (0.3,))
    done = DOORS["transformers"](tmp_path / "bad").run()
    until(over)
    assert done.losses == plain.losses
    assert all(map(torch.equal, done.weights, plain.weights))
    assert [text for text in caplog.messages if "ON_EVENT" in text] == [
        f"perf_callbacks: the command of PERF_CALLBACKS_ON_EVENT {said}. Training goes on."
    ]


def test_a_flood_of_events_is_told_of_once(tmp_path, monkeypatch, caplog):
    events = commanded(monkeypatch, tmp_path)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(tmp_path))
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, 4)] * 20, config=config) as perf:
        for batch in perf.loader:
            model(batch).sum().backward()
            optimizer.step()
            for _ in range(50):
                perf._session.recorder.observers.happened("stall", {"text": "no step"})
    until(over)
    assert [event["event"] for event in events()] == ["stall"] * 10 + ["end"]
    assert events()[-1]["dropped"] == 990
    assert len([text for text in caplog.messages if "ON_EVENT" in text]) == 1


def test_a_stall_is_passed_on_with_its_stack_and_again_when_it_is_over(tmp_path, monkeypatch):
    events = commanded(monkeypatch, tmp_path)

    def hang(step):
        if step == 5:
            until(lambda: [event["event"] for event in events()] == ["stall"])

    DOORS["loop"](tmp_path, after_step=hang, stall_after="1").run()
    until(over)
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
    until(over)
    assert ": ended after step 8 and " in (tmp_path / "events.txt").read_text(encoding="utf-8")


def test_no_integration_takes_a_command_as_an_argument():
    for make in (HuggingFaceCallback, LightningCallback):
        with pytest.raises(ConfigError, match="on_event is set by the environment alone"):
            make(on_event="notify.sh")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("door", ["loop", "accelerate", "transformers", "lightning"])
def test_a_run_that_is_killed_is_told_of(tmp_path, door, number):
    plan = {"door": door, "moment": "step", "directory": str(tmp_path), "measured": True}
    file = tmp_path / "events.jsonl"
    process = start(
        "killed_run.py",
        json.dumps(plan),
        imports=IMPORTS[door],
        environ={"PERF_CALLBACKS_ON_EVENT": f"sh -c 'cat >> {file}'"},
        output=tmp_path / "out",
        errors=tmp_path / "err",
    )
    try:
        until((tmp_path / "trains").exists)
        until((tmp_path / "perf_callbacks" / "rank0.jsonl").exists)
        os.kill(process.pid, number)
        process.wait()
    finally:
        process.kill()
        process.wait()
    until(file.exists)
    until(lambda: file.read_text().endswith("\n"))
    (end,) = [json.loads(line) for line in file.read_text().splitlines()]
    in_order = door == "lightning" and number == signal.SIGTERM  # Lightning ends the training itself
    assert end["end"]["state"] in ({"ended", "failed"} if in_order else {"lost"})


@pytest.mark.slow
def test_a_job_passes_on_a_stall_and_its_death_once(tmp_path):
    file = tmp_path / "events.jsonl"
    imports = ("torch._dynamo", "torch.distributed.tensor.parallel", "perf_callbacks.loop")
    command = {"PERF_CALLBACKS_ON_EVENT": f"sh -c 'cat >> {file}'"}
    words = "lock", tmp_path
    with ranks("hanging_rank.py", *words, imports=imports, directory=tmp_path, environ=lambda _: command):
        until(file.exists)
    until(lambda: '"lost"' in file.read_text())
    stall, end = [json.loads(line) for line in file.read_text().splitlines()]
    assert "Rank 1 is in forward: hanging_rank.py:" in stall["text"]
    assert (stall["event"], stall["rank"], stall["world_size"], stall["stall"]["under_way"]) == ("stall", 0, 2, True)
    assert (end["event"], end["rank"], end["end"]["state"]) == ("end", 0, "lost")
