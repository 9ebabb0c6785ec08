"""Send traces to the side process, and receive the answers. Nothing here waits for it."""

import json
import os
import socket
import sys
import weakref
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.helper_process import NO_SIGNAL, HelperProcess, let_go
from perf_callbacks.kernel.settings.resolution import SWITCH
from perf_callbacks.profiles import side_process


class Reducer(HelperProcess):
    """Starts the side process with the fit, because a later start would delay training."""

    def __init__(self) -> None:
        paths = json.dumps([path for path in sys.path if path])
        super().__init__(side_process.__file__, paths, env={**os.environ, SWITCH: "0"})
        self._process_id = os.getpid()
        weakref.finalize(self, let_go, self.socket, self.process).atexit = False

    def send(self, trace: Path, kept: Path, last: int) -> None:
        """`last` is the trace's last complete step. Raise `OSError` if the side process was killed."""
        job = json.dumps({"trace": str(trace), "kept": str(kept), "last": last}).encode() + b"\n"
        if self.socket.send(job, NO_SIGNAL) < len(job):
            raise BlockingIOError("the side process doesn't read")

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]

    def dismiss(self) -> None:
        """The side process ends after its current job. A second call does nothing."""
        self.over = True
        if os.getpid() == self._process_id:  # closing is not enough while a forked child holds the same socket
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
        let_go(self.socket, self.process)
