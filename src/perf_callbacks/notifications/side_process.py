"""Side process that runs the user's command for each event, and once more if the training process is killed.

Python runs this file by its path and without site-packages, so the file imports only the standard library. The first
line on stdin holds the command, its time limit, and the event for a killed training process. Each further line is an
event or the current step, such as `{"step": 3}`; an empty line ends the process. After each event, it writes a line
to stdout: the reason why the command failed, or null.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from threading import Thread
from time import time as unix_time  # noqa: TID251 no module of the package can be imported here
from typing import IO, Any

MOST_SHOWN = 200

READ_SECONDS = 0.5
"""Wait for the end of stderr, which a process that the command left behind may keep open."""


def main() -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # a scheduler ends all processes of a job, first with SIGTERM
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _stay)  # not SIG_IGN, which the command would inherit
    setup = _parsed(sys.stdin.buffer.readline())
    if not setup:
        return
    command, seconds, lost = setup["command"], setup["seconds"], setup["lost"]
    for line in _lines(sys.stdin.buffer):
        if line == b"\n":
            return
        event = _parsed(line)
        if "event" in event:
            _answer(run(command, line, seconds))
            if event["event"] == "end":
                return
        elif event and lost:
            lost |= event
    if not lost:
        return
    lost["time_unix"] = unix_time()
    run(command, json.dumps(lost).encode() + b"\n", seconds)


def _lines(stdin: IO[bytes]) -> Iterator[bytes]:
    """Reading raises `ConnectionResetError` if the training process is killed before it reads all answers."""
    try:
        yield from stdin
    except OSError:
        return


def run(command: list[str], event: bytes, seconds: float) -> str | None:
    """Return the reason why the command failed; None: it succeeded."""
    try:
        process = subprocess.Popen(  # noqa: S603 the user's command, from the environment alone
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"can't be started: {getattr(error, 'strerror', None) or error}"
    last = bytearray()
    reader = Thread(target=_keep_last, args=(process.stderr, last), daemon=True)
    reader.start()
    Thread(target=_feed, args=(process.stdin, event), daemon=True).start()  # the command may never read
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"took longer than {seconds:g} s and was killed"
    if status == 0:
        return None
    reader.join(READ_SECONDS)
    line = bytes(last).decode(errors="replace").strip().rpartition("\n")[2]
    return f"ended with status {status}" + (f": {line}" if line else "")


def _stay(_number: int, _frame: object) -> None:
    """Ignore a signal, because the last event is still to come."""


def _parsed(line: bytes) -> dict[str, Any]:
    """An incomplete line is an empty dictionary."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _answer(trouble: str | None) -> None:
    try:
        sys.stdout.write(json.dumps(trouble) + "\n")
        sys.stdout.flush()
    except OSError:  # the training is gone
        pass


def _feed(stdin: IO[bytes], event: bytes) -> None:
    try:
        with stdin:
            stdin.write(event)
    except OSError:  # the command has ended, or reads no event
        pass


def _keep_last(stderr: IO[bytes], last: bytearray) -> None:
    with stderr:
        while chunk := stderr.read1(4096):  # type: ignore[attr-defined]
            last += chunk
            del last[:-MOST_SHOWN]


if __name__ == "__main__":
    if os.getppid() != 1 and os.fork():  # a training as process 1 would inherit the child, and never wait for it
        os._exit(0)  # otherwise, the training's `os.wait` would return this child, or wait for it
    main()
