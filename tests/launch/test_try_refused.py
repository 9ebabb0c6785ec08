"""`perf-callbacks try`, on programs that write, and on programs that can't be tried."""

import sys

import pytest
from trial_kit import AT_ONCE, LOOP

from perf_callbacks import commands

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only /proc shows that no process of a trial is left")


REFUSED = {
    "a crash": ("raise ValueError('no data')", "the program ended with status 1: ", "ValueError: no data"),
    "no training": ("print('nothing')", "made no step with an optimizer of torch", ""),
    "a log file": ("open('train.log', 'a').write('line')", "writes train.log, at train.py:", "With --yes"),
    "a new directory": ("import os; os.makedirs('runs/1', exist_ok=True)", "writes runs", ""),
    "a removed file": ("import os; os.remove('train.py')", "writes train.py", ""),
    "a data base": ("import sqlite3; sqlite3.connect('a.db')", "writes a.db", ""),
    "a forked worker that writes": (
        "import os, time; os.fork() or open('a.log', 'w'); time.sleep(60)", "writes a.log", "",
    ),
    "a child that writes": (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', \"open('a.log', 'w')\"])", "writes a.log", "",
    ),
    "standard input": ("input()", "status 1: ", "EOFError"),
}  # fmt: skip


@pytest.mark.parametrize("program", REFUSED)
def test_a_program_that_cannot_be_tried_is_refused(tried, program):
    source, *parts = REFUSED[program]
    status, result, complaints = tried(source)
    assert (status, result) == (1, None)
    assert [part for part in parts if part not in complaints] == []


ALLOWED = """
import os, shutil, sqlite3, tempfile
os.makedirs(".", exist_ok=True)
with tempfile.TemporaryDirectory() as directory:
    open(os.path.join(directory, "file"), "w").close()
    os.makedirs(os.path.join(directory, "a/b"))
sqlite3.connect(":memory:")
sqlite3.connect("file:a.db?mode=memory", uri=True)
open("train.py").close()
open(os.devnull, "w").close()
print("through", flush=True)
raise SystemExit(3)
"""


def test_a_program_that_writes_to_temporary_files_is_not_refused(tried):
    assert "the program ended with status 3: through" in tried(ALLOWED)[2]


def test_an_interpreter_that_is_not_watched_is_not_started(tried):
    status, _, complaints = tried("open('a.log', 'w')", sys.executable, "-I", "train.py")
    assert status == 1
    assert "python -I doesn't import sitecustomize" in complaints


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--rounds", "0", "train.py"], "--rounds: got 0, wanted a number above 0."),
        (["--seconds", "nan", "train.py"], "--seconds: got nan, wanted a number above 0."),
        (["--only", "loader,fast", "train.py"], "--only: got fast, wanted some of loader, "),
        (["nowhere.py"], "there is no file and no command named nowhere.py."),
        ([], "nothing to try."),
    ],
)
def test_an_input_that_makes_no_sense(capsys, monkeypatch, tmp_path, words, complaint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert commands.main(["try", *words]) == 2
    assert complaint in capsys.readouterr().err


SLOW = pytest.mark.slow


@SLOW
def test_a_log_file_is_written_with_yes_only(tried, tmp_path):
    source = AT_ONCE + LOOP + "log = open('train.log', 'a')\nlog.write('one')\nlog.flush()\ntrain()\n"
    (tmp_path / "work" / "train.log").write_text("old")
    assert "writes train.log, at train.py:" in tried(source)[2]
    status, result, _ = tried(source, before=("--yes", "--only", "optimizer"), writes=True)
    assert status == 0
    assert (tmp_path / "work" / "train.log").read_text() == "old" + "one" * (result["launches"] + 1)


@SLOW
def test_saves_do_nothing_with_yes(tried):
    saving = """
import safetensors.torch
def save(step):
    torch.save({"a": 1}, "model.pt")
    safetensors.torch.save_file({"a": torch.ones(2)}, "model.safetensors")
train(each=save)
"""
    assert "writes model.pt, at train.py:" in tried(AT_ONCE + LOOP + saving)[2]
    status, result, _ = tried(AT_ONCE + LOOP + saving, before=("--yes", "--only", "optimizer"))
    assert (status, result["failed"]) == (0, {})
