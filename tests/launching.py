"""How tests start programs: where these find the package, what a rank is told, and an end in any case."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import perf_callbacks

TESTS = Path(__file__).parent
PATHS = os.pathsep.join([str(Path(perf_callbacks.__file__).parents[1]), str(TESTS)])
"""Of the package and of the tests' kit."""


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


def run_ranks(code, *arguments, world_size=2):
    """Run a program as each rank of a job, and return the exit statuses. No rank outlives its test."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=program_environ(**rank_environ(rank, world_size, port)),
        )
        for rank in range(world_size)
    ]
    try:
        return [rank.wait(120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def python(*arguments, cwd=None, **environ):
    """Another interpreter, which ends before its test does, its children included; its status and what it said."""
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
