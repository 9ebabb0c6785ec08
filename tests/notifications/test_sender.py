"""The training's side: nothing waits, whatever the command and its process do."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from jobs import until

from perf_callbacks.kernel.process import helper_process
from perf_callbacks.notifications import sender
from perf_callbacks.notifications.sender import MOST_UNSENT, Sender

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="on_event runs no command on Windows, and says so")

LOST = {"event": "end", "step": 0, "end": {"state": "lost"}}


def line(event, **details):
    return json.dumps({"event": event, **details}).encode() + b"\n"


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Starts senders whose command appends to `events.jsonl`, and leaves none."""
    monkeypatch.chdir(tmp_path)
    made = []

    def start(*command, lost=LOST, seconds=60.0):
        made.append(Sender(command or ("sh", "-c", "cat >> events.jsonl"), lost, seconds))
        return made[-1]

    yield start
    for one in made:
        one.dismiss()
        until(lambda one=one: not one.tick(0.0))
    assert not sender.SENDERS.intersection(made)  # one of a fit before may still pass its last event on


def events(directory):
    file = directory / "events.jsonl"
    return [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []


def test_events_reach_the_command_in_order_and_the_process_ends(started, tmp_path):
    one = started()
    for step in range(3):
        assert one.send(line("stall", step=step))
    assert one.send(line("end", step=3), last=True)
    assert not one.send(line("stall"))  # nothing follows the end
    until(lambda: not one.tick(0.0))
    assert [event["step"] for event in events(tmp_path)] == [0, 1, 2, 3]


def test_the_first_trouble_is_logged_and_no_other(started, caplog):
    one = started("sh", "-c", "echo no route >&2; exit 1")
    for _ in range(3):
        one.send(line("stall"))
    one.send(line("end"), last=True)
    until(lambda: not one.tick(0.0))
    assert caplog.messages == [
        "perf_callbacks: the command of PERF_CALLBACKS_ON_EVENT ended with status 1: no route. Training goes on."
    ]


def test_a_process_that_takes_nothing_costs_events_and_no_time(started, tmp_path):
    one = started()
    os.killpg(one.process.pid, signal.SIGSTOP)
    text = line("stall", text="x" * 10_000)
    sent = 0
    while one.send(text):
        sent += 1
        assert sent * len(text) < MOST_UNSENT + 2_000_000  # a socket holds 200 kB as a rule
    assert not one.send(text)
    os.killpg(one.process.pid, signal.SIGCONT)
    until(lambda: one.tick(0.0) and one.heard)
    assert len(events(tmp_path)) == sent


def test_a_process_that_was_killed_is_told_of_once(started, caplog):
    one = started()
    until(lambda: one.process.poll() is not None)  # the side process has another parent now
    os.killpg(one.process.pid, signal.SIGKILL)
    until(lambda: one.lines() == [] and one.over)
    one.send(line("stall"))
    one.send(line("stall"))
    assert not one.tick(0.0)
    assert caplog.messages == [
        "perf_callbacks: the command of PERF_CALLBACKS_ON_EVENT gets no more events: Broken pipe. Training goes on."
    ]


def test_a_handler_of_the_log_may_wait_for_a_thread_that_ends_the_sender(started, monkeypatch):
    one = started("false")
    others = []

    def emit(*_):
        others.append(threading.Thread(target=one.dismiss))
        others[-1].start()
        others[-1].join()

    monkeypatch.setattr(sender.log, "warning", emit)
    one.send(line("stall"))
    until(lambda: one.tick(0.0) and others)
    assert not others[0].is_alive()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_neither_ends_nor_holds_the_process(started, tmp_path):
    one = started()
    if (child := os.fork()) == 0:
        with suppress(BaseException):  # else the child goes on with pytest
            one.send(line("stall", step=1))
            os._exit(0 if not sender.SENDERS and one.socket.fileno() < 0 else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    one.send(line("end", step=2), last=True)
    until(lambda: not one.tick(0.0))
    assert [event["step"] for event in events(tmp_path)] == [2]


EXIT = """
import json, sys
from perf_callbacks.notifications.sender import Sender
one = Sender(["sh", "-c", sys.argv[1]], {"event": "end", "state": "lost"})
one.send(json.dumps({"event": "end", "state": "ended"}).encode() + b"\\n", last=True)
"""


@pytest.mark.parametrize("end", ["", "import os; os._exit(0)"])
def test_the_last_event_outlives_the_training(tmp_path, end):
    command = "cat > part; mv part event"
    subprocess.run([sys.executable, "-Werror", "-c", EXIT + end, command], cwd=tmp_path, check=True, env=environ())
    until((tmp_path / "event").exists)
    assert json.loads((tmp_path / "event").read_text())["state"] == "ended"


def test_a_command_that_fails_at_the_end_is_told_of_at_the_exit(tmp_path):
    script = [sys.executable, "-Werror", "-c", EXIT, "exit 7"]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=True, env=environ())
    assert done.stderr == (
        "perf_callbacks: the command of PERF_CALLBACKS_ON_EVENT ended with status 7. Training goes on.\n"
    )


KILLED = """
import os, signal, sys
from perf_callbacks.notifications.sender import Sender
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
one = Sender(["true"], None)
os.killpg(one.process.pid, signal.SIGKILL)
while one.tick(0.0):
    one.note_step(1)
    one.send(b'{"event": "stall"}\\n')
print("training goes on")
"""


def test_a_process_that_was_killed_ends_no_program_that_obeys_sigpipe(tmp_path):
    script = [sys.executable, "-c", KILLED]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False, env=environ())
    assert (done.returncode, done.stdout) == (0, "training goes on\n")


WAITING = """
import os, time
from perf_callbacks.notifications.sender import Sender
one = Sender(["true"], None)
while one.process.returncode is None:
    one.tick(0.0)
try:
    os.wait()
except ChildProcessError:
    print("no child", one.over)
"""


def test_the_training_has_no_child_to_wait_for(tmp_path):
    script = [sys.executable, "-c", WAITING]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=True, env=environ(), timeout=60)
    assert done.stdout == "no child False\n"


def test_without_a_thread_events_still_reach_the_command(started, tmp_path, monkeypatch):
    monkeypatch.setattr(sender.WATCHDOG, "watch", lambda _: None)
    one = started()
    assert one.send(line("end", step=1), last=True)
    until(lambda: not one.tick(0.0))
    assert [event["step"] for event in events(tmp_path)] == [1]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_never_waits_for_a_lock_of_another_thread(started):
    one = started()
    held, go = threading.Event(), threading.Event()

    def hold():
        with one.lock:
            held.set()
            go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    if (child := os.fork()) == 0:
        signal.alarm(30)
        one.dismiss()
        os._exit(0)
    go.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def environ():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("missing", ["killpg", "python", "frozen"])
def test_where_no_process_can_be_started_there_is_a_reason(monkeypatch, missing):
    assert helper_process.why_not("commands") is None
    if missing == "killpg":
        monkeypatch.delattr(os, "killpg")
    elif missing == "python":
        monkeypatch.setattr(sys, "executable", "")
    else:
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert helper_process.why_not("commands")
