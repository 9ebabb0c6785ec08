"""`perf-callbacks watch`: one frame, frames over time, keys, and the textfile."""

import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeClock
from journals import a_summary
from recorded import NO_PROCESS, NOW, a_recorded, stand_still

import perf_callbacks
from perf_callbacks.commands import main
from perf_callbacks.commands.watch import keep, live
from perf_callbacks.commands.watched_run import WatchedRun
from perf_callbacks.kernel.records.followed_journal import FollowedJournals
from perf_callbacks.kernel.records.summary_parts import StallSummary
from perf_callbacks.report import run_reader
from perf_callbacks.report.rank_pace import Paces
from perf_callbacks.report.run_reader import RunReader
from perf_callbacks.report.styled_lines import plain
from perf_callbacks.report.watch_frame import TerminalSize

SOURCE = Path(perf_callbacks.__file__).parents[1]


@pytest.fixture
def still(monkeypatch):
    stand_still(monkeypatch)


class FakeDisplay:
    """A display that presses keys, or does something, after each frame. Ten seconds pass."""

    def __init__(self, *after):
        self.after, self.frames, self.shape, self.clock = [*after], [], TerminalSize(columns=80, rows=24), FakeClock()

    def size(self):
        return self.shape

    def draw(self, lines):
        self.frames.append([plain(line) for line in lines])

    def keys(self, _seconds):
        self.clock.sleep(10.0)
        following = self.after.pop(0) if self.after else "q"
        return following() or "" if callable(following) else following


def watched(top, clock, **options):
    return WatchedRun(top, RunReader(FollowedJournals().read), clock=clock, **options)


def shown(top, *after, **options):
    display = FakeDisplay(*after)
    assert live(watched(top, display.clock, **options), Paces(), display, str(top)) == 0
    return display.frames


@pytest.mark.usefixtures("still")
def test_a_single_frame_is_printed_into_a_pipe(tmp_path, capsys):
    a_recorded(tmp_path, ended=False, so_far=a_summary())
    assert main(["watch", str(tmp_path), "--once"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("running: step 20 after 14.0 s, last sign of life 5.00 s ago.\nWaiting for data took")
    assert printed.err == ""
    assert "\x1b" not in printed.out
    assert main(["watch", str(tmp_path)]) == 0
    assert capsys.readouterr() == printed


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("words", [["--once"], ["--once", "--run", "b"], []])
def test_without_a_run_a_single_frame_is_an_error(tmp_path, capsys, words):
    if "--run" in words:
        a_recorded(tmp_path)
    assert main(["watch", str(tmp_path), *words]) == 2
    which = "no run whose id begins with 'b'" if "--run" in words else "no run"
    assert capsys.readouterr().err == f"perf-callbacks watch: {tmp_path}: {which} in or below this directory.\n"


@pytest.mark.usefixtures("still")
def test_a_run_that_begins_later_is_shown(tmp_path):
    frames = shown(
        tmp_path / "out",
        lambda: a_recorded(tmp_path / "out/a", age=25.0, run_id="a", ended=False),
        lambda: a_recorded(tmp_path / "out/b", run_id="b"),
        "",
    )
    assert " ".join(frames[0][:3]).split()[:5] == ["no", "run", "yet", "in", str(tmp_path / "out")[:200] + ";"]
    assert frames[1][0].startswith("running: step 20")
    assert frames[2][0].startswith("ended 5.00 s ago")
    assert frames[1][-1] == "q quit"
    assert frames[2][-1] == "q quit   n older run   p newer run   2 runs here"


@pytest.mark.usefixtures("still")
def test_keys_choose_an_older_or_newer_run(tmp_path):
    for age in (5.0, 15.0, 25.0):
        a_recorded(tmp_path / f"{age:.0f}", age=age, run_id=f"id{age:.0f}")
    frames = shown(tmp_path, "n", "nn", "p", "x", "p", "p")
    ages = [frame[0].split()[1] for frame in frames]
    assert ages == ["5.00", "15.0", "25.0", "15.0", "5.00"]  # an equal frame isn't drawn again
    assert shown(tmp_path, wanted="id15")[0][0].split()[1] == "15.0"


@pytest.mark.usefixtures("still")
def test_a_chosen_run_stays_while_others_begin(tmp_path):
    for age in (15.0, 25.0):
        a_recorded(tmp_path / f"{age:.0f}", age=age, run_id=f"id{age:.0f}")
    frames = shown(tmp_path, "n", lambda: a_recorded(tmp_path / "5", run_id="id5"), "")
    assert frames[-1][0].split()[1] == "25.0"
    assert "3 runs here" in frames[-1][-1]


@pytest.mark.usefixtures("still")
def test_a_frame_has_the_size_of_the_terminal(tmp_path):
    a_recorded(tmp_path)
    display = FakeDisplay()

    def shrink():
        display.shape = TerminalSize(columns=40, rows=10)

    display.after = [shrink, ""]
    assert live(watched(tmp_path, display.clock), Paces(), display, "") == 0
    assert [len(frame) for frame in display.frames] == [24, 10]
    assert max(map(len, display.frames[1])) <= 40 < max(map(len, display.frames[0]))


@pytest.mark.usefixtures("still")
def test_an_unreadable_journal_does_not_end_the_view(tmp_path):
    a_recorded(tmp_path, ranks=2)
    journal = tmp_path / "perf_callbacks/rank1.jsonl"

    def remove():
        journal.unlink()

    frames = shown(tmp_path, lambda: journal.write_text("rubbish\n") and "", remove, "")
    assert "ranks without a journal: 1" in " ".join(frames[-1])


@pytest.mark.usefixtures("still")
def test_the_textfile_is_written_until_the_run_ends(tmp_path):
    path, seen, clock = tmp_path / "run.prom", [], FakeClock()
    begins = [
        lambda: a_recorded(tmp_path / "old", run_id="old", age=90.0),
        lambda: a_recorded(tmp_path / "new", ended=False),
        lambda: a_recorded(tmp_path / "new"),
    ]

    def pause(seconds):
        clock.sleep(seconds)
        seen.append(path.read_text() if path.exists() else None)
        begins[len(seen) - 1]()

    assert keep(watched(tmp_path, clock), path, Paces(), pause) == 0
    assert seen[0] is None
    assert 'perf_callbacks_up{run="old",attempt="1"} 0.0' in seen[1]  # a run that ended before doesn't end the writing
    assert 'perf_callbacks_up{run="a1",attempt="1"} 1.0' in seen[2]
    assert 'perf_callbacks_up{run="a1",attempt="1"} 0.0' in path.read_text()
    assert [one.name for one in tmp_path.glob("run*")] == ["run.prom"]


@pytest.mark.usefixtures("still")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no permission bits for other users")
def test_the_textfile_can_be_read_by_all(tmp_path):
    a_recorded(tmp_path)
    before = os.umask(0o077)
    try:
        assert main(["watch", str(tmp_path), "--once", "--textfile", str(tmp_path / "run.prom")]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run.prom").stat().st_mode) == 0o644


@pytest.mark.usefixtures("still")
def test_a_textfile_that_nothing_would_read_is_an_error(tmp_path, capsys):
    a_recorded(tmp_path)
    for name, said in (("run.txt", "names end with .prom"), ("gone/run.prom", "No such file or directory")):
        assert main(["watch", str(tmp_path), "--once", "--textfile", str(tmp_path / name)]) == 2
        assert said in capsys.readouterr().err


def test_a_process_that_goes_is_said_before_it_counts_as_silent(tmp_path, monkeypatch):
    if not hasattr(os, "major"):
        pytest.skip("Windows has no list of locks")
    a_recorded(tmp_path, ended=False)
    found = (tmp_path / "perf_callbacks/rank0.jsonl").stat()
    locks = {(os.major(found.st_dev), os.minor(found.st_dev), found.st_ino): NO_PROCESS}
    monkeypatch.setattr(run_reader, "unix_time", lambda: NOW)
    monkeypatch.setattr(run_reader, "read_locks", lambda: dict(locks))
    frames = shown(tmp_path, locks.clear, "")
    assert frames[0][0].startswith(f"running as process {NO_PROCESS}: step 20")
    assert f"process {NO_PROCESS} is gone: it was killed, crashed, or ended while its disk was full" in " ".join(
        " ".join(frames[1][:2]).split()
    )


@pytest.mark.parametrize(
    ("there", "times", "numbers"),
    [
        (True, [0.0, 5.0, 499.0, 506.0, 507.0], [1, 1, 2]),  # a hundredth of the time: the next one is due after 500 s
        (False, [0.0, 5.0, 5.5, 54.0, 56.0, 56.1], [1, 1, 1, 2]),  # without a run a tenth
    ],
)
def test_searches_take_a_small_part_of_the_time(tmp_path, there, times, numbers):
    if there:
        a_recorded(tmp_path)
    reader, clock, searched = RunReader(FollowedJournals().read), iter(times), []
    nearest = reader.nearest
    reader.nearest = lambda top: searched.append(top) or nearest(top)
    run = WatchedRun(tmp_path, reader, clock=lambda: next(clock))
    for number in numbers:
        assert ((run.look() is not None), len(searched)) == (there, number)


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("command", [["watch", "--once"], ["show"], ["runs"]])
def test_a_directory_that_cannot_be_looked_at_is_an_error(tmp_path, capsys, command):
    place = tmp_path / ("a" * 300)
    assert main([command[0], str(place), *command[1:]]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.usefixtures("still")
def test_a_journal_may_hold_two_ranks(tmp_path, capsys):
    a_recorded(tmp_path, ranks=2)
    folder = tmp_path / "perf_callbacks"
    with (folder / "rank0.jsonl").open("a") as file:
        file.write((folder / "rank1.jsonl").read_text())
    (folder / "rank1.jsonl").unlink()
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "\n     1  " in capsys.readouterr().out


NO_TERMINALS = "Windows has no pseudo-terminals"


@pytest.fixture
def terminal():
    """Both ends of a terminal of 80 columns and 24 rows."""
    pytest.importorskip("termios", reason=NO_TERMINALS)
    import pty
    import termios

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80)) if hasattr(termios, "tcsetwinsize") else resize(theirs, 24, 80)
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def resize(terminal, rows, columns):
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def begin(directory, theirs, **environ):
    usual = {name: text for name, text in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    environ = {**usual, "PYTHONPATH": str(SOURCE), "TERM": "xterm-256color", "LANG": "C.UTF-8", **environ}
    command = [sys.executable, "-m", "perf_callbacks", "watch", str(directory)]
    return subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True)


def until(ours, text, before=b""):
    """What the terminal got, up to this text."""
    while text not in before:
        before += os.read(ours, 65_536)
    return before


ENDS = {
    "q": (lambda ours, _process: os.write(ours, b"q"), 0),
    "SIGINT": (lambda _ours, process: process.send_signal(signal.SIGINT), 130),
    "SIGTERM": (lambda _ours, process: process.send_signal(signal.SIGTERM), 143),
}


@pytest.mark.parametrize("way", ENDS)
def test_the_terminal_is_restored_at_the_end(tmp_path, terminal, way):
    import termios

    ours, theirs = terminal
    a_recorded(tmp_path)
    act, status = ENDS[way]
    before = termios.tcgetattr(theirs)
    process = begin(tmp_path, theirs)
    seen = until(ours, b"q quit")
    act(ours, process)
    seen = until(ours, b"after step 20", until(ours, b"\x1b[?1049l", seen).split(b"\x1b[?1049l")[1])
    assert b"ended" in seen  # the first lines stay on the screen
    assert process.wait() == status
    assert termios.tcgetattr(theirs) == before


def test_an_interrupt_while_the_view_begins_restores_the_terminal(terminal, monkeypatch):
    import termios

    from rich.live import Live

    from perf_callbacks.commands.watch_screen import Screen

    def interrupted(_live):
        raise KeyboardInterrupt

    before, handler = termios.tcgetattr(terminal[1]), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Live, "start", interrupted)
    with os.fdopen(os.dup(terminal[1])) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(KeyboardInterrupt), Screen():
            pass
    assert termios.tcgetattr(terminal[1]) == before
    assert signal.getsignal(signal.SIGTERM) == handler


def test_a_frame_follows_the_size_of_the_terminal(tmp_path, terminal):
    ours, theirs = terminal
    a_recorded(tmp_path)
    process = begin(tmp_path, theirs, NO_COLOR="1")
    seen = until(ours, b"q quit")
    assert b"\x1b[?1049h" in seen
    assert b"Waiting for data took 25% of the run; try" in seen
    assert b"\x1b[3" not in seen.replace(b"\x1b[?25l", b"")
    resize(theirs, 20, 30)
    until(ours, b"  the run; try")
    os.write(ours, b"q")
    until(ours, b"\x1b[?1049l")
    assert process.wait() == 0


@pytest.mark.parametrize(
    "environ",
    [{"TERM": "dumb"}, {"TERM": "dumb", "LANG": "C", "PYTHONIOENCODING": "ascii"}, {"JPY_PARENT_PID": "1"}],
    ids=["dumb", "ascii", "notebook"],
)
def test_a_terminal_that_moves_no_cursor_gets_a_single_frame(tmp_path, terminal, environ):
    ours, theirs = terminal
    a_recorded(tmp_path)
    process = begin(tmp_path, theirs, **environ)
    seen = until(ours, b"backward")
    assert process.wait() == 0
    assert (b"\x1b[H" if "JPY_PARENT_PID" in environ else b"\x1b") not in seen
    assert b"ended" in seen


def test_a_hang_of_a_single_process_shows_line_and_stack(tmp_path, monkeypatch, capsys):
    stand_still(monkeypatch)
    stalls = StallSummary(count=1, seconds=61.0, under_way=True, where="The training is in data: loader.py:41 `next`.")
    a_recorded(tmp_path, ended=False, hangs=True, so_far=replace(a_summary(), stalls=stalls))
    assert main(["watch", str(tmp_path), "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "The training is in data: loader.py:41 `next`" in " ".join(" ".join(lines[:3]).split())
    assert lines[lines.index("  stack of data, innermost line last:") + 1] == "    loader.py:41 next"
