"""Sender of events from the training process to the side process, which runs the user's command.

If their socket is full, the watchdog's thread sends the events later: the training never waits for the command.
"""

import atexit
import json
import logging
import os
import threading
from collections.abc import Sequence
from errno import EPIPE
from typing import Any

from perf_callbacks.kernel.clock import POLL_SECONDS, monotonic, sleep
from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.kernel.process.helper_process import NO_SIGNAL, HelperProcess, let_go
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.settings.config import printable
from perf_callbacks.kernel.settings.on_event import VARIABLE
from perf_callbacks.notifications import side_process

COMMAND_SECONDS = 10.0
"""After this time, a running command and its process group are killed."""

MOST_UNSENT = 256_000
"""Bytes that wait for the side process. Further events are dropped."""

EXIT_SECONDS = 3.0
"""The interpreter's exit waits this long for the command, which a container or a Slurm step would kill otherwise."""

log = logging.getLogger("perf_callbacks")


class Sender(HelperProcess):
    """Passes events to a side process. Any thread may call the methods, and no method waits."""

    def __init__(self, command: Sequence[str], lost: dict[str, Any] | None, seconds: float = COMMAND_SECONDS) -> None:
        """`lost` is the event that the command gets if this process is killed or crashes."""
        setup = {"command": list(command), "seconds": seconds, "lost": lost}
        self.lock = threading.RLock()  # a signal handler that ends a fit may interrupt a call
        self._unsent = bytearray(json.dumps(setup).encode() + b"\n")
        self._events = self._answered = 0
        self._leaving = self._logged = False
        self._trouble: str | None = None  # the first failure of the command
        super().__init__("-S", side_process.__file__)
        SENDERS.add(self)
        self._flush()
        WATCHDOG.watch(self)

    def send(self, line: bytes, *, last: bool = False) -> bool:
        """Return False if the event was dropped. After a `last` event, the side process ends."""
        with self.lock:
            if self._leaving or len(self._unsent) + len(line) > MOST_UNSENT:
                return False
            self._unsent += line
            self._events += 1
            self._leaving = last
            self._flush()
            return True

    def note_step(self, step: int) -> None:
        """The side process reports this step if this process is killed or crashes."""
        with self.lock:
            if not self._unsent and not self._leaving:
                self._unsent += json.dumps({"step": step}).encode() + b"\n"
                self._flush()

    def dismiss(self) -> None:
        """Let the side process end after the events that were already sent. Idempotent."""
        with self.lock:
            if not self._leaving:
                self._leaving = True
                self._unsent += b"\n"
                self._flush()

    def tick(self, now: float) -> bool:  # noqa: ARG002 the watchdog calls with the time
        """Send waiting events, and log the command's first failure. Return False once the side process has ended."""
        with self.lock:
            self._flush()
            runs = not self.over or self.process.poll() is None
            if not runs:
                self.disown()
            trouble = None if self._logged else self._trouble
            self._logged = self._trouble is not None
        # Without the lock: a thread may hold a log handler's lock, while its garbage collection waits in `dismiss`.
        if trouble is not None:
            log.warning("perf_callbacks: the command of %s %s. Training goes on.", VARIABLE, printable(trouble))
        return runs

    @property
    def heard(self) -> bool:
        """True if the command has handled all events, or if no more answers will come."""
        return self._answered >= self._events or self.over

    def disown(self) -> None:
        """Close the socket, but let the side process go on. Idempotent."""
        SENDERS.discard(self)
        self._leaving = True
        self.lock = threading.RLock()  # in a forked child, a thread that is gone may hold the old lock
        let_go(self.socket, self.process)

    def _flush(self) -> None:
        for answer in self.lines():
            self._answered += 1
            self._trouble = self._trouble or json.loads(answer)
        try:
            if self._unsent and self.over:
                raise BrokenPipeError(EPIPE, os.strerror(EPIPE))
            while self._unsent and self.socket.fileno() >= 0:
                del self._unsent[: self.socket.send(self._unsent, NO_SIGNAL)]
        except OSError as error:
            let_pass(error)
            if isinstance(error, BlockingIOError):  # the socket is full
                return
            # The side process was killed.
            self._trouble = self._trouble or f"gets no more events: {error.strerror or error}"
            self._unsent.clear()


SENDERS: set[Sender] = set()
"""Keeps each sender alive while its side process runs, even after the end of its fit."""


def _at_exit() -> None:
    deadline = monotonic() + EXIT_SECONDS
    for sender in [*SENDERS]:
        while sender.tick(0.0) and not sender.heard and monotonic() < deadline:
            sleep(POLL_SECONDS)
        sender.disown()


def _in_child() -> None:
    with suppress(Exception):  # our errors must not stop a worker
        for sender in [*SENDERS]:
            sender.disown()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
