"""Helper processes that run beside the training. No thread of the training waits for a helper process."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import let_pass, suppress

NO_SIGNAL: int = getattr(socket, "MSG_NOSIGNAL", 0)
"""Prevents SIGPIPE, which ends a program by default. macOS lacks this flag."""


class HelperProcess:
    """Reads jobs from a socket and answers each with one line. No method of this class blocks."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        """Start Python in isolated mode (`-I`), in a process session of its own."""
        self.over = False
        self._received = bytearray()
        self.socket, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = subprocess.Popen(  # noqa: S603 our own file
                    [sys.executable, "-I", *arguments],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    env=env,
                )
        except BaseException:
            self.socket.close()
            raise
        self.socket.setblocking(False)

    def lines(self) -> list[bytes]:
        self.process.poll()  # the started process forks, and ends at once
        try:
            while not self.over and self.socket.fileno() >= 0:
                chunk = self.socket.recv(65_536)
                self.over = not chunk
                self._received += chunk
        except OSError as error:
            let_pass(error)
            self.over = not isinstance(error, BlockingIOError)  # else killed while a job waited
        *lines, rest = self._received.split(b"\n")
        self._received = bytearray(rest)
        return [bytes(line) for line in lines]


def let_go(end: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    """Close our end of the socket without ending or awaiting the process. Idempotent."""
    with suppress(OSError):
        end.close()
    if process.returncode is None:
        process.returncode = 0  # else a `ResourceWarning`: nobody waits for this process


def why_not(feature: str) -> str | None:
    """Return why a file of this package can't run in a helper process; None if it can."""
    if not (hasattr(os, "fork") and hasattr(os, "killpg")):
        return f"{feature} need a POSIX system"
    if not sys.executable or getattr(sys, "frozen", False) or not Path(__file__).is_file():
        return "there is no Python interpreter to start"
    return None
