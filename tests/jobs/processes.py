"""How tests start programs: where these find the package, what a rank is told, and an end in any case.

Most processes are forks of one that has imported what they need, so that an import is paid once for all of them.
"""

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import perf_callbacks

TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(Path(perf_callbacks.__file__).parents[1]), str(TESTS)])
"""Of the package and of the tests' kits."""


def until(condition):
    """Wait for another process or thread. The time limit of pytest ends a wait that lasts too long."""
    while not condition():
        time.sleep(0.01)


def program_environ(**environ):
    """The environment of a program, whose threads don't fight for the cores of the machine."""
    return {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", **environ}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def rank_environ(rank, world_size, port):
    """What a launcher tells a rank of a machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    }


def python(*arguments, cwd=None, **environ):
    """Another interpreter, which ends before its test does, its children included; its status and output."""
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=program_environ(**environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=280)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, output


class Process:
    """A fork, to be waited for and killed as a `subprocess.Popen`."""

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
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
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
    for file in (output, errors):
        file.touch()
    request = {
        "script": str(TESTS / script),
        "words": [str(word) for word in words],
        "environ": program_environ(**environ),
        "files": [str(output), str(errors)],
        "directory": str(errors.parent),
        "status": str(status),
    }
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return Process(int(server.stdout.readline()), status)


def run(script, *words, imports, directory, **environ):
    """Run a script to its end in a directory. Return its exit status, output and errors."""
    output, errors = directory / "output", directory / "errors"
    for earlier in (output, errors):
        earlier.unlink(missing_ok=True)
    process = start(script, *words, imports=imports, environ=environ, output=output, errors=errors)
    try:
        status = process.wait(280)
    finally:
        process.kill()
    return status, output.read_text(), errors.read_text()


@functools.cache
def _server(*imports):
    """Start what forks. It ends with its standard input, when the suite does."""
    command, pipe = [sys.executable, "-m", "jobs.fork_server", *imports], subprocess.PIPE
    server = subprocess.Popen(
        command, env=program_environ(), stdin=pipe, stdout=pipe, text=True, start_new_session=True
    )
    atexit.register(server.communicate)
    return server
