"""A system without what POSIX has: the names are taken away from a process, and everything works or is unknown."""

import ast
from pathlib import Path

import pytest
from jobs import run

import perf_callbacks

SOURCE = Path(perf_callbacks.__file__).parent

ABSENT = {
    "os": """
        O_ACCMODE O_ASYNC O_CLOEXEC O_DIRECTORY O_DSYNC O_NOCTTY O_NOFOLLOW O_NONBLOCK O_SYNC WEXITSTATUS WIFEXITED
        chown chroot confstr copy_file_range ctermid eventfd fchdir fchmod fchown fdatasync fork forkpty fpathconf
        getegid geteuid getgid getgroups getloadavg getpgid getpgrp getpriority getresuid getsid getuid initgroups
        killpg major makedev minor
        lchown lockf memfd_create mkfifo mknod nice openpty pathconf pipe2 posix_fadvise posix_fallocate
        posix_spawn pread preadv pwrite pwritev readv register_at_fork sched_getaffinity sched_getparam
        sched_getscheduler sched_setaffinity sched_yield sendfile setegid seteuid setgid setpgid setpriority setsid
        setuid splice statvfs sync sysconf sysconf_names tcgetpgrp ttyname umask_ uname wait wait3 wait4 waitid writev
        set_blocking setxattr getxattr""",
    "signal": "SIGALRM SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 SIGCHLD SIGPIPE alarm pthread_kill pthread_sigmask "
    "setitimer getitimer sigwait pause",
    "time": "clock_gettime clock_gettime_ns clock_getres clock_settime CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_REALTIME "
    "tzset pthread_getcpuclockid",
}
"""What Windows lacks of the standard library's modules, as far as code might use it."""

MODULES = ["fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"]

PRELUDE = """
import os, runpy, signal, sys, tempfile, time, subprocess, platform, multiprocessing, multiprocessing.resource_tracker
from importlib import import_module
for module, names in ABSENT.items():
    for name in names.split():
        if hasattr(import_module(module), name):
            delattr(import_module(module), name)
os.supports_dir_fd.clear(); os.supports_fd.clear()
sys.modules.update(dict.fromkeys(MODULES))
"""

TORCH_FREE = """
from perf_callbacks.commands import main
from perf_callbacks.launch import accelerate_config
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.records import journal_file
from perf_callbacks.kernel.process import processes
from perf_callbacks.kernel.process import resident_memory
from perf_callbacks.journal import Memory, read
from fakes import a_run
journal = journal_file.FileJournal(Path("out/perf_callbacks/rank0.jsonl"), max_bytes=10**6, complain=print, began=0.0)
journal.write(a_run())
journal.write(Memory(step=2, device="cpu", weights_gb=1.0))
journal.close()
assert len(list(read("out"))) == 2
for words in (["status"], ["flops", "--params", "1e9", "--seq", "9"], ["memory", "out"], ["report", "out"],
              ["trace", "out"], ["watch", "out", "--once"], ["watch", "out", "--textfile", "out/run.prom", "--once"]):
    assert main(words) == 0, words
assert processes.read() is None and resident_memory.peak_bytes() is None
assert not {"rich", "torch"} & {*sys.modules}
"""

WITH_TORCH = """
import torch
from perf_callbacks import PerfConfig
from perf_callbacks.commands import main
from perf_callbacks.stragglers.gradient_moments import GradientMoments
from perf_callbacks.kernel.process import cpu_time, processes
from perf_callbacks.loop import measure
from perf_callbacks.ranks import node, store
model = torch.nn.Linear(4, 4)
moments = GradientMoments(model.weight, time.perf_counter)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config, loader = PerfConfig(output_dir="out"), [torch.ones(2, 4)] * 6
with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
    for batch in perf.loader:
        model(batch).sum().backward()
        optimizer.step()
assert perf.summary.failure is None, perf.summary.failure
assert [moment.line for moment in moments.noted] == [b""] * 6
assert store.open_files_allowed() is None and cpu_time.idle([0]) is None and processes.cpu_mask() == frozenset()
folder = node.FileNotes(Path("notes"))
folder.write("verdict", "note")
assert folder.read("verdict") == ["note"] and folder.get(["verdict"]) == [b"note"]
folder.leave(talks=True)
assert not Path("notes").exists()
assert main(["check"]) == 0
"""


@pytest.mark.parametrize(
    ("imports", "script"),
    [("json", TORCH_FREE), pytest.param("torch._dynamo", WITH_TORCH, marks=pytest.mark.needs_torch)],
    ids=["bare", "torch"],
)
def test_functions_that_other_systems_lack_are_not_needed(tmp_path, imports, script):
    (tmp_path / "acc.yaml").write_text("a: 1\n")
    lines = [f"ABSENT, MODULES = {ABSENT!r}, {MODULES!r}", PRELUDE, "from pathlib import Path", script]
    (program := tmp_path / "program.py").write_text("\n".join(lines))
    status, _, errors = run(program, imports=(imports,), directory=tmp_path, HF_HOME=str(tmp_path))
    assert status == 0, errors
    assert "Traceback" not in errors


EVERYWHERE = {
    "os": """
        O_APPEND O_CREAT O_EXCL O_RDONLY O_RDWR O_TRUNC O_WRONLY PathLike SEEK_END SEEK_SET W_OK _Environ _exit access
        close cpu_count devnull dup dup2
        environ execve fdopen fsdecode fstat fsync get_terminal_size getpid getppid kill listdir lseek lstat name
        open path pathsep read rename
        replace scandir
        sep stat stat_result strerror supports_dir_fd supports_fd unlink write""",
    "signal": "SIGTERM SIG_DFL SIG_IGN getsignal signal valid_signals",
    "time": "local perf_counter",  # `time` is a variable too
}
"""What the package uses of them and every system has."""


def test_each_name_that_the_package_uses_is_everywhere_or_was_taken_away():
    unknown = set()
    for file in SOURCE.rglob("*.py"):
        for found in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(found, ast.Attribute) and isinstance(found.value, ast.Name) and found.value.id in ABSENT:
                module = found.value.id
                if found.attr not in {*EVERYWHERE[module].split(), *ABSENT[module].split()}:
                    unknown.add(f"{module}.{found.attr}")
    assert unknown == set()
