"""Directory in the user's cache in which the package stores measurements of this machine."""

import os
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import suppress


def cache_directory() -> Path:
    """Return the path of the directory `perf_callbacks` in the user's cache directory."""
    with suppress(RuntimeError):  # the user has no home directory: nothing is stored
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perf_callbacks"
    return Path(os.devnull) / "perf_callbacks"
