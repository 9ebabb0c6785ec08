"""CPU time, memory and reads of a process with children, from a `/proc` that the test has laid out."""

import os
import subprocess
import sys

import pytest

from perf_callbacks.kernel.process import processes
from perf_callbacks.kernel.process.processes import Processes

TICKS, PAGE = (os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")) if hasattr(os, "sysconf") else (1, 1)


def lay(root, pid, *, ticks=(1, 2, 3, 4), pages=10, shared=4, threads=None, reads=None):
    folder = root / "proc" / str(pid)
    for thread, children in (threads or {pid: ""}).items():
        (folder / "task" / str(thread)).mkdir(parents=True)
        (folder / "task" / str(thread) / "children").write_text(children)
    values = ["0"] * 50
    values[11:15] = map(str, ticks)
    (folder / "stat").write_text(f"{pid} (a) b) (c) " + " ".join(values) + "\n")
    (folder / "statm").write_text(f"999 {pages} {shared} 1 0 2 0\n")
    if reads is not None:
        (folder / "io").write_text(f"rchar: 1\nread_bytes: {reads}\n")
    return root


def test_children_of_all_threads_and_their_children_count(tmp_path):
    lay(tmp_path, 1, threads={1: "2 ", 11: "3 99 "}, reads=5)
    lay(tmp_path, 2, threads={2: "4 "}, pages=1, shared=1, reads=7)
    lay(tmp_path, 3, ticks=(10, 0, 0, 0))
    lay(tmp_path, 4)
    expected = Processes(cpu_seconds=40 / TICKS, resident_bytes=31 * PAGE, anonymous_bytes=18 * PAGE, read_bytes=12)
    assert processes.read(tmp_path, 1) == expected


def test_a_child_that_is_another_rank_counts_for_itself(tmp_path, monkeypatch):
    """Lightning starts the other ranks of a machine from the first."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    environs = {1: "A=1", 2: "A=1", 3: "LOCAL_RANK=0\0A=1", 4: "A=1\0LOCAL_RANK=1\0"}
    lay(tmp_path, 1, threads={1: "2 3 4"})
    for pid in (2, 3, 4):
        lay(tmp_path, pid, threads={pid: "5" if pid == 4 else ""})
    lay(tmp_path, 5)
    for pid, environ in environs.items():
        (tmp_path / "proc" / str(pid) / "environ").write_text(environ)
    assert processes.read(tmp_path, 1).resident_bytes == 30 * PAGE  # a forked and a spawned worker


def test_reads_that_the_system_does_not_tell_are_unknown(tmp_path):
    assert processes.read(lay(tmp_path, 1), 1).read_bytes is None


def test_a_system_without_shared_pages_leaves_anonymous_memory_unknown(tmp_path):
    found = processes.read(lay(tmp_path, 1, shared=0), 1)
    assert (found.resident_bytes, found.anonymous_bytes) == (10 * PAGE, None)


def test_without_proc_nothing_is_known(tmp_path):
    assert processes.read(tmp_path, 1) is None


def test_a_kernel_that_lists_no_children_tells_nothing(tmp_path):
    lay(tmp_path, 1)
    (tmp_path / "proc/1/task/1/children").unlink()
    assert processes.read(tmp_path, 1) is None


def test_foreign_contents_tell_nothing(tmp_path):
    lay(tmp_path, 1)
    (tmp_path / "proc/1/stat").write_text("no")
    assert processes.read(tmp_path, 1) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it")
def test_a_child_of_this_process_is_seen():
    before = processes.read()
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()  # it runs
        alone = processes.read(pid=child.pid)
        both = processes.read()
        child.communicate(b"\n")
    assert 0 < alone.resident_bytes < both.resident_bytes
    assert both.resident_bytes > before.resident_bytes
    assert processes.allowed_cpus() == len(os.sched_getaffinity(0))
