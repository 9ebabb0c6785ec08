"""Measurements of this machine, in the user's cache."""

import os
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import suppress


def cache_directory() -> Path:
    with suppress(RuntimeError):  # the user has no home directory: nothing is stored
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perf_callbacks"
    return Path(os.devnull) / "perf_callbacks"
