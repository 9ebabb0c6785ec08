"""CPU time of a thread, as /proc shows it."""

import os
import threading

import pytest

from perf_callbacks.kernel.process.cpu_time import CpuTime, idle, read, runnable, throttled, voluntary_switches


@pytest.fixture
def root(tmp_path):
    """A file system with the times of one thread."""

    def make(text):
        folder = tmp_path / f"proc/self/task/{threading.get_native_id()}"
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(text)
        return tmp_path

    return make


def test_a_thread_has_run_and_has_waited(root):
    assert read(root=root("3500000000 500000000 42\n")) == CpuTime(3.5, 0.5)


@pytest.mark.parametrize("text", ["", "0 0 0\n", "3", "a b c"])
def test_a_system_that_tells_nothing_makes_it_unknown(root, text):
    assert read(root=root(text)) is None


def test_switches_of_a_thread_are_read_from_its_status(tmp_path):
    assert voluntary_switches(7, tmp_path) is None
    (tmp_path / "proc/self/task/7").mkdir(parents=True)
    (tmp_path / "proc/self/task/7/status").write_text(
        "Name:\ta\nvoluntary_ctxt_switches:\t977\nnonvoluntary_ctxt_switches:\t5\n"
    )
    assert voluntary_switches(7, tmp_path) == 977


@pytest.mark.parametrize(("state", "expected"), [("R", True), ("S", False), ("D", False), (None, False)])
def test_a_runnable_thread_is_known_by_its_state(tmp_path, state, expected):
    if state is not None:
        (tmp_path / "proc/self/task/7").mkdir(parents=True)
        (tmp_path / "proc/self/task/7/stat").write_text(f"7 (a) R (b) {state} 1 7 7 0\n")
    assert runnable(7, tmp_path) is expected


def test_nothing_is_known_of_a_thread_that_is_gone(tmp_path):
    assert read(7, tmp_path) is None


def test_times_are_compared_with_earlier_ones():
    assert CpuTime(3.5, 0.5).since(CpuTime(1.5, 0.25)) == CpuTime(2.0, 0.25)


STAT = """\
cpu  40 0 40 500 60 0 0 0 0 0
cpu0 10 0 10 100 50 0 0 0 0 0
cpu1 10 0 10 300 0 0 0 0 0 0
cpu12 20 0 20 100 10 0 0 0 0 0
intr 7 0 0
"""


@pytest.mark.parametrize(("cpus", "seconds"), [({0}, 150), ({0, 12}, 260), ({0, 3}, None), ({1, 3}, None), ((), None)])
def test_idle_cpus_are_counted_within_the_mask(tmp_path, monkeypatch, cpus, seconds):
    monkeypatch.setattr(os, "sysconf", {"SC_CLK_TCK": 1}.__getitem__)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(STAT)
    assert idle(cpus, tmp_path) == seconds


@pytest.mark.parametrize("text", ["", "cpu0 10\n", "cpufreq 1 2 3 4 5\n"])
def test_idle_cpus_are_unknown_to_a_system_that_tells_nothing(tmp_path, text):
    assert idle({0}, tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(text)
    assert idle({0}, tmp_path) is None


@pytest.mark.parametrize(
    ("file", "text", "seconds"),
    [
        ("cpu.stat", "nr_periods 9\nthrottled_usec 2500000\n", 2.5),
        ("cpu/cpu.stat", "nr_throttled 9\nthrottled_time 2500000000\n", 2.5),
        ("cpu.stat", "usage_usec 9\n", None),
        ("cpu.stat", "throttled_usec many\n", None),
    ],
)
def test_the_time_for_which_a_quota_stopped_threads(tmp_path, file, text, seconds):
    assert throttled(tmp_path) is None
    path = tmp_path / "sys/fs/cgroup" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert throttled(tmp_path) == (None if seconds is None else pytest.approx(seconds))
