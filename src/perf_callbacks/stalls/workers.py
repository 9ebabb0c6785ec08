"""Worker of a `DataLoader` for which the training waits: its id and state in `/proc`, as its stack can't be read."""

import sys
from itertools import islice
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.stacks import DEEPEST, outward

_MODULE = "torch.utils.data.dataloader"
_WAITS = ("_get_data", "_try_get_data")
"""Of a loader's iterator."""

_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits for a disk or a network file system",
    "T": "is stopped",
    "t": "is stopped",
    "Z": "has ended",
    "X": "has ended",
}
"""Of a process in `/proc/<pid>/stat`."""


def awaited(thread: int) -> tuple[int, int] | None:
    """Return the number and the process id of the worker for which a thread waits."""
    for frame in islice(outward(sys._current_frames().get(thread)), DEEPEST):  # noqa: SLF001 the only way to a stack
        if frame.f_code.co_name in _WAITS and str(frame.f_globals.get("__name__", "")).startswith(_MODULE):
            with suppress(Exception):  # private attributes of torch, which another version may name differently
                iterator: Any = frame.f_locals["self"]
                worker = int(iterator._task_info[iterator._rcvd_idx][0])  # noqa: SLF001 as above
                return worker, int(iterator._workers[worker].pid)  # noqa: SLF001 as above
            return None
    return None


def sentence(who: str, worker: int, pid: int, root: Path = Path("/")) -> str:
    process = root / "proc" / str(pid)
    state, function = "", ""
    with suppress(OSError, IndexError):
        word = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        state = _STATES.get(word, "")
    with suppress(OSError):
        function = (process / "wchan").read_text().strip("0 \n")
    where = f" in the kernel's `{function}`" if state and function else ""
    does = f", which {state}{where}" if state else ""
    return f"{who} waits for the loader's worker {worker}{does}: `py-spy dump --pid {pid}` shows its line."
