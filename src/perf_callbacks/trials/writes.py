"""Protection of the program's files: a trial must not write to them, and must not upload anything.

Each trial writes to a scratch directory. If the program opens a file outside of the scratch directory for writing, the
trial ends the process before the file is opened. With `--yes`, known functions that save files do nothing, and any
other write to a file really happens. A trial can't detect writes by C code, writes by child processes, or writes to the
network.
"""

import os
import sys
import sysconfig
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from perf_callbacks.kernel.process.stacks import callers
from perf_callbacks.trials.plan import RESUMES, SAVES
from perf_callbacks.trials.turn import Turn

TRACKERS = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
}
"""Environment variables that keep experiment trackers from recording a trial."""

CACHES = (
    "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR", "MPLCONFIGDIR", "CUDA_CACHE_PATH",
)  # fmt: skip
"""Environment variables that name cache directories, in which a program may write during a trial."""

SYSTEM = ("/dev", "/proc", "/sys")

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGING: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.link": ((1, 3),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.utime": ((0, 3),),
    "shutil.move": ((0, None), (1, None)),
    "shutil.rmtree": ((0, 1),),
}
"""Audit events of Python that change files. Each event has a pair of numbers for each path that it changes.

The first number is the position of the path in the event's arguments. The second number is the position of a directory
descriptor, or None without a descriptor; with Python 3.10, `shutil.rmtree` has none.
"""

IN_MEMORY_OR_READ = ("mode=memory", "mode=ro", "immutable=1")
"""Opening an SQLite database writes no file if the database's address contains one of these texts."""

UPLOADS = (
    "create_branch", "create_commit", "create_commits_on_pr", "create_repo", "create_tag", "delete_branch",
    "delete_file", "delete_files", "delete_folder", "delete_repo", "delete_tag", "move_repo", "preupload_lfs_files",
    "super_squash_history", "update_repo_settings", "upload_file", "upload_folder", "upload_large_folder",
)  # fmt: skip
"""Names of the methods and functions of `huggingface_hub` that change a repository on the hub."""

PRETRAINED = {
    "peft.peft_model": "PeftModel",
    "transformers.configuration_utils": "PretrainedConfig",
    "transformers.feature_extraction_utils": "FeatureExtractionMixin",
    "transformers.generation.configuration_utils": "GenerationConfig",
    "transformers.image_processing_base": "ImageProcessingMixin",
    "transformers.modeling_utils": "PreTrainedModel",
    "transformers.processing_utils": "ProcessorMixin",
    "transformers.tokenization_utils_base": "PreTrainedTokenizerBase",
}
"""For each module: its class with a method `save_pretrained`."""

STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))


class Writes:
    """Watches a trial's process for writes outside of the scratch directory."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        home = Path("~").expanduser() if os.environ.get("HOME") else Path(turn.plan.scratch)
        homes = [home / ".cache", home / ".config", home / ".triton"]
        named = [os.environ[name] for name in CACHES if os.environ.get(name)]
        places = [turn.plan.scratch, str(turn.path.parent), *map(str, homes), *named, *SYSTEM]
        self._allowed = tuple([os.path.join(os.path.realpath(place), "") for place in places])  # noqa: PTH118 a prefix

    def watch(self) -> None:
        """Begin to watch for writes. Before the program writes outside of the scratch directory, end the process."""
        if not self._turn.plan.yes:
            sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = any(letter in mode for letter in "wax+") if mode else bool(flags & _WRITING)
            found = [path] if writes else []
        elif event == "os.mkdir":
            path = _joined(arguments[0], arguments[2])
            found = [] if os.path.lexists(path) else [path]  # programs make directories that are there already
        elif event == "sqlite3.connect":
            found = _database(arguments[0])
        elif event in _CHANGING:
            found = [_joined(arguments[place], (*arguments, None)[of or -1]) for place, of in _CHANGING[event]]
        else:
            return
        for path in found:
            if self.outside(path):
                self.leave(path)

    def outside(self, path: object) -> bool:
        """Return True if a trial must not write to this path."""
        if not isinstance(path, str | bytes | os.PathLike) or not path:
            return False
        real = os.path.realpath(os.fsdecode(path))
        return not (os.path.join(real, "").startswith(self._allowed) or "__pycache__" in real)  # noqa: PTH118 a prefix

    def leave(self, path: object) -> None:
        """End the process, and report the path and the program's line that writes to it."""
        name = os.fsdecode(path) if isinstance(path, bytes | os.PathLike) else str(path)
        self._turn.leave(SAVES, f"{name}, at {program_line()}")

    def keep(self, owner: Any, name: str, place: int) -> None:
        """Replace a function that saves files, so that it doesn't write outside of the scratch directory.

        The path is the positional argument number `place`, or a keyword argument. Calls with a file object are not
        changed.
        """
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
        """Replace the methods and functions of `huggingface_hub` that upload, so that a trial uploads nothing."""
        for owner in (module.HfApi, module):
            for name in UPLOADS:
                inner = getattr(owner, name, None)
                if inner is not None:
                    setattr(owner, name, self._uploading(module, inner))

    def _uploading(self, module: ModuleType, inner: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(inner)
        def upload(*words: Any, **kwargs: Any) -> Any:
            if not self._turn.plan.yes:
                self._turn.leave(SAVES, f"to a hub, at {program_line()}")
            name = next((one for one in [kwargs.get("repo_id"), *words] if isinstance(one, str)), "")
            return module.RepoUrl(f"{module.ENDPOINT}/{name}") if inner.__name__ == "create_repo" else None

        return upload

    def resumes(self) -> None:
        """End the process because the program resumes from a checkpoint, unless the user passed `--yes`."""
        if not self._turn.plan.yes and self._turn.mine and not self._turn.trains:
            self._turn.leave(RESUMES, program_line())


def _database(name: Any) -> list[Any]:
    """Return the path of an SQLite database that a program opens, or [] if the database is in memory or read-only."""
    text = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else ""  # bytes: Python 3.10
    if text == ":memory:" or any(part in text for part in IN_MEMORY_OR_READ):
        return []
    return [text.removeprefix("file:").partition("?")[0]]


def _joined(path: Any, directory: Any) -> Any:
    """Join a path to the open directory with this descriptor. Without a descriptor, return the path unchanged."""
    if isinstance(directory, int) and directory >= 0 and isinstance(path, str | bytes | os.PathLike):
        return os.path.join(os.path.realpath(f"/proc/self/fd/{directory}"), os.fsdecode(path))  # noqa: PTH118 a string
    return path


def program_line() -> str:
    """Return the innermost line of the program's own code in the stack. Lines of installed packages don't count."""
    libraries = (str(Path(__file__).parents[1]), "<", *STANDARD_LIBRARY)
    for frame in callers():
        file = frame.f_code.co_filename
        if not file.startswith(libraries) and "site-packages" not in file:
            return f"{Path(file).name}:{frame.f_lineno}"
    return "a line of a package"
