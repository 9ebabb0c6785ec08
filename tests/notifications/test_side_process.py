"""The process that runs the command, driven by its pipes as the training drives it."""

import json
import os
import select
import signal
import socket
import subprocess
import sys

import pytest
from jobs import until

from perf_callbacks.notifications import side_process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="on_event runs no command on Windows, and says so")

LOST = {"event": "end", "step": 0, "time_unix": 0.0, "end": {"state": "lost"}}


class Side:
    """A side process, and the file to which its command appends."""

    def __init__(self, directory, command, *, seconds=60.0, lost=LOST):
        self.file = directory / "events.jsonl"
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", side_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            start_new_session=True,
        )
        self.write({"command": command, "seconds": seconds, "lost": lost})

    def write(self, item):
        self.process.stdin.write(json.dumps(item).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def ended(self):
        """The events in the file, once the side process has ended."""
        _, errors = self.process.communicate(timeout=60)
        assert errors == b""
        assert self.process.returncode == 0
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []


APPEND = ["sh", "-c", "cat >> events.jsonl"]


def test_a_training_that_is_gone_is_told_of_with_its_last_step(tmp_path):
    side = Side(tmp_path, APPEND)
    side.write({"step": 41})
    (event,) = side.ended()
    assert (event["end"]["state"], event["step"]) == ("lost", 41)
    assert event["time_unix"] > 0


def test_a_training_that_is_gone_without_reading_an_answer_is_told_of(tmp_path):
    file = tmp_path / "events.jsonl"
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", side_process.__file__], stdin=theirs, stdout=theirs, cwd=tmp_path
        )
    setup = {"command": APPEND, "seconds": 60.0, "lost": LOST}
    ours.sendall(b"".join([json.dumps(line).encode() + b"\n" for line in (setup, {"event": "stall", "step": 1})]))
    select.select([ours], [], [], 60)  # the answer came
    ours.close()  # resets the socket
    process.wait(60)
    until(lambda: file.exists() and file.read_text().count("\n") == 2)
    assert json.loads(file.read_text().splitlines()[1])["end"]["state"] == "lost"


@pytest.mark.parametrize("word", [b"\n", None], ids=["dismissed", "no lost event"])
def test_nothing_is_told_where_no_last_event_is_to_come(tmp_path, word):
    side = Side(tmp_path, APPEND, lost=LOST if word else None)
    if word:
        side.process.stdin.write(word)
    assert side.ended() == []


def test_a_torn_line_is_no_event(tmp_path):
    side = Side(tmp_path, APPEND)
    side.process.stdin.write(b'[1]\n"x"\n{"event": "sta')
    (event,) = side.ended()
    assert event["end"]["state"] == "lost"


FAILING = {
    "missing": (["./nothing-here"], "can't be started: No such file or directory"),
    "status": (["sh", "-c", "exit 3"], "ended with status 3"),
    "message": (["sh", "-c", "echo first >&2; echo no route >&2; exit 1"], "ended with status 1: no route"),
    "hang": (["sleep", "1000"], "took longer than 0.2 s and was killed"),
    "hang of a child": (["sh", "-c", "sleep 1000 & wait"], "took longer than 0.2 s and was killed"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_command_that_fails_is_answered_with_a_reason(tmp_path, case):
    command, reason = FAILING[case]
    side = Side(tmp_path, command, seconds=0.2 if "hang" in case else 60.0)
    side.write({"event": "stall"})
    assert side.answer() == reason
    side.write({"event": "end"})
    assert side.answer() == reason
    side.ended()


def test_a_command_that_floods_its_output_or_reads_no_event_holds_nothing_up(tmp_path):
    side = Side(tmp_path, ["sh", "-c", "head -c 3000000 /dev/zero | tee /dev/stderr; exit 0"])
    side.write({"event": "stall", "text": "x" * 500_000})
    assert side.answer() is None
    side.write({"event": "end"})
    assert side.answer() is None
    side.ended()


def test_a_signal_to_all_processes_of_a_job_leaves_the_last_event(tmp_path):
    side = Side(tmp_path, ["sh", "-c", "kill -TERM $$; cat >> events.jsonl"])
    side.write({"event": "stall"})
    assert side.answer() == f"ended with status {-signal.SIGTERM}"  # the command itself obeys signals
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.killpg(side.process.pid, number)
    side.write({"event": "end"})
    side.answer()
    side.ended()


def test_the_side_process_ends_although_a_command_leaves_a_process_behind(tmp_path):
    side = Side(tmp_path, ["sh", "-c", "sleep 1000 & echo $! > child; exit 1"])
    side.write({"event": "end"})
    assert side.answer() == "ended with status 1"
    side.ended()
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
