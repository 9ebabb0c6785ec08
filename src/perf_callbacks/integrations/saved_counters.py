"""Counters of a fit, such as its step, saved in a separate file of a checkpoint directory.

Training can also resume from a checkpoint without this file. The state that the framework saves is not changed, so a
resumed run ends with the same state as an uninterrupted run.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.kernel.records import atomic_file

NAME = "perf_callbacks.json"

log = logging.getLogger("perf_callbacks")


def write(directory: Path, rank: int, state: Mapping[str, Any]) -> None:
    """Write the counters of a rank into a checkpoint directory. Each rank has its own file.

    The file is written completely or not at all. If writing fails, log a warning, and training goes on.
    """
    try:
        atomic_file.replace(directory / _name(rank), json.dumps(dict(state)).encode())
    except OSError as error:
        let_pass(error)
        log.warning("perf_callbacks: the checkpoint has no counters: %s", error)


def read(directory: Path, rank: int) -> dict[str, Any]:
    """Read the counters of a rank, or the counters of rank 0 if the checkpoint has none for this rank.

    Return an empty dictionary if the checkpoint holds no valid counters.
    """
    for name in (_name(rank), NAME):
        with suppress(OSError, ValueError, RecursionError):
            state = json.loads((directory / name).read_text(encoding="utf-8"))
            if isinstance(state, dict) and all(isinstance(state.get(key), int) for key in ("rank", "step", "attempt")):
                return state
    return {}


def _name(rank: int) -> str:
    return f"perf_callbacks.{rank}.json" if rank else NAME
