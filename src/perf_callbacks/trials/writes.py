"""Keep trials from writing to the program's files, and from uploading.

Each trial writes to a scratch directory. If the program opens another file to write, the trial leaves the process
before the file is opened, unless the user said `--yes`. Then known functions that save do nothing, and other writes
happen. C code, child processes and the network are not seen.
"""

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from perf_callbacks.trials.plan import RESUMES, SAVES
from perf_callbacks.trials.turn import Turn

TRACKERS = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
}
"""Variables that keep experiment trackers from recording a trial."""

CACHES = (
    "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR", "MPLCONFIGDIR", "CUDA_CACHE_PATH",
)  # fmt: skip
"""Variables with directories of caches, in which programs may write."""

SYSTEM = ("/dev", "/proc", "/sys")

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGING = {
    "os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.truncate": 1, "shutil.rmtree": 1, "shutil.move": 2,
    "sqlite3.connect": 1,
}  # fmt: skip
"""Events of Python's audit that change files, and the number of their paths."""

MEMORY = ":memory:"
"""The path of a data base that is no file."""

UPLOADS = ("upload_file", "upload_folder", "upload_large_folder", "create_commit")
"""Methods of `huggingface_hub.HfApi` that upload."""


class Writes:
    """Watches a trial's process for writes outside of the scratch directory."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        home = Path("~").expanduser() if os.environ.get("HOME") else Path(turn.plan.scratch)
        homes = [home / ".cache", home / ".config", home / ".triton"]
        named = [os.environ[name] for name in CACHES if os.environ.get(name)]
        places = [turn.plan.scratch, *map(str, homes), *named, *SYSTEM]
        self._allowed = tuple([os.path.join(os.path.realpath(place), "") for place in places])  # noqa: PTH118 a prefix

    def watch(self) -> None:
        """Leave the process before the program opens a file to write, from now on. Nothing can undo this."""
        if not self._turn.plan.yes:
            sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = any(letter in mode for letter in "wax+") if mode else bool(flags & _WRITING)
            if writes and self.outside(path):
                self.leave(path)
        elif event in _CHANGING:
            for path in arguments[: _CHANGING[event]]:
                if path != MEMORY and self.outside(path):
                    self.leave(path)

    def outside(self, path: object) -> bool:
        """Return True if a trial must not write to a path."""
        if not isinstance(path, str | bytes | os.PathLike) or not path or not self._turn.mine:
            return False
        real = os.path.realpath(os.fsdecode(path))
        return not (real.startswith(self._allowed) or "__pycache__" in real)

    def leave(self, path: object) -> None:
        """Leave the process, and report the path and the program's line."""
        name = os.fsdecode(path) if isinstance(path, bytes | os.PathLike) else str(path)
        self._turn.leave(SAVES, f"{name}, at {program_line()}")

    def keep(self, owner: Any, name: str, place: int) -> None:
        """Replace a function that saves. The path is its argument number `place`; objects that are no path pass."""
        inner: Callable[..., Any] = getattr(owner, name)

        @wraps(inner)
        def save(*args: Any, **kwargs: Any) -> Any:
            paths = [*args[place : place + 1], *kwargs.values()]
            found = [path for path in paths if isinstance(path, str | os.PathLike) and self.outside(path)]
            if not found:
                return inner(*args, **kwargs)
            if not self._turn.plan.yes:
                self.leave(found[0])
            return None

        setattr(owner, name, save)

    def hub(self, module: ModuleType) -> None:
        """Keep a trial from uploading to a hub."""
        for name in UPLOADS:
            inner = getattr(module.HfApi, name, None)
            if inner is not None:
                setattr(module.HfApi, name, self._uploading(inner))

    def _uploading(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(inner)
        def upload(*_: Any, **__: Any) -> None:
            if not self._turn.plan.yes:
                self._turn.leave(SAVES, f"an upload to a hub, at {program_line()}")

        return upload

    def resumes(self) -> None:
        """Leave the process because the program resumes, unless the user said `--yes`."""
        if not self._turn.plan.yes and self._turn.mine and not self._turn.trains:
            self._turn.leave(RESUMES, program_line())


def program_line() -> str:
    """Return the innermost line of the stack that belongs to the program, and not to an installed package."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 only the stack shows which line it is
    ours = str(Path(__file__).parents[1])
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((ours, "<")) and "site-packages" not in file and not file.startswith(sys.base_prefix):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "a line of a package"
