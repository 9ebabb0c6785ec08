"""Processes that begin where another one has imported what they need, so that an import is paid once for all of them.

As a program it imports the modules that it is told, and forks a process for each line of JSON that it reads.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import types
from contextlib import contextmanager, suppress
from pathlib import Path

from launching import TESTS, free_port, program_environ, rank_environ


class Forked:
    """A process, to be waited for and killed as a `subprocess.Popen`."""

    def __init__(self, pid, status):
        self.pid = pid
        self.returncode = None
        self._status = status

    def poll(self):
        if self.returncode is None:
            with suppress(FileNotFoundError, ValueError):  # not there yet, or empty
                self.returncode = os.waitstatus_to_exitcode(int(self._status.read_text()))
        return self.returncode

    def wait(self, timeout=60.0):
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self._status), timeout)
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def start(script, *words, imports, environ, output, errors):
    """Run a script of the tests, in the directory of the file `errors`, with what it prints in files."""
    server, status = _server(*imports), Path(f"{errors}.status")
    status.unlink(missing_ok=True)
    request = {
        "script": str(TESTS / script),
        "words": words,
        "environ": program_environ(**environ),
        "files": [str(output), str(errors)],
        "directory": str(errors.parent),
        "status": str(status),
    }
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return Forked(int(server.stdout.readline()), status)


def run(script, *words, imports, directory, **environ):
    """Run a script to its end in a directory. Return its exit status, output and errors."""
    output, errors = directory / "output", directory / "errors"
    for earlier in (output, errors):
        earlier.unlink(missing_ok=True)
    process = start(script, *map(str, words), imports=imports, environ=environ, output=output, errors=errors)
    try:
        status = process.wait(280)
    finally:
        process.kill()
    return status, output.read_text(), errors.read_text()


@contextmanager
def ranks(script, *words, imports, directory, environ=lambda _: {}):
    """Start a script as both ranks of a job, each told its number last. None outlives the block."""
    port = free_port()
    processes = [
        start(
            script,
            *map(str, words),
            str(rank),
            imports=imports,
            environ=rank_environ(rank, 2, port) | environ(rank),
            output=directory / f"rank{rank}.out",
            errors=directory / f"rank{rank}.err",
        )
        for rank in range(2)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def said(directory):
    """All that the ranks have written to their outputs."""
    return [path.read_text() for path in sorted([*directory.glob("rank*.out"), *directory.glob("rank*.err")])]


@functools.cache
def _server(*imports):
    """Start what forks. It ends with its standard input, when we do."""
    command = [sys.executable, __file__, *imports]
    pipe = subprocess.PIPE
    server = subprocess.Popen(
        command, env=program_environ(), stdin=pipe, stdout=pipe, text=True, start_new_session=True
    )
    atexit.register(server.communicate)
    return server


def main():
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no collection of a fork goes through all that was imported, or makes pages of its own for it
    statuses = {}

    def ended(*_):
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                Path(statuses.pop(found[0])).write_text(str(found[1]))

    signal.signal(signal.SIGCHLD, ended)
    while line := sys.stdin.readline():
        request = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # until it is known whose status it is
        pid = os.fork()
        if not pid:
            become(request)
            return
        statuses[pid] = request["status"]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        print(pid, flush=True)


def become(request):
    """Be the process that was asked for; it ends as any other, with its last line and the interpreter's end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for number, path in enumerate([os.devnull, *request["files"]]):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["directory"])
    script = request["script"]
    sys.argv = [script, *request["words"]]
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    program.__file__ = script
    exec(compile(Path(script).read_text(), script, "exec"), vars(program))


if __name__ == "__main__":
    main()
