"""Counters of a fit, such as its step, in a separate file of a checkpoint directory.

Training can also resume without this file. What the framework saves stays as it is, so a resumed run ends with the same
state as an uninterrupted one.
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
    """Write a rank's file completely or not at all. After a failure, training goes on."""
    try:
        atomic_file.replace(directory / _name(rank), json.dumps(dict(state)).encode())
    except OSError as error:
        let_pass(error)
        log.warning("perf_callbacks: the checkpoint has no counters: %s", error)


def read(directory: Path, rank: int) -> dict[str, Any]:
    """Read the counters of a rank, or else those of rank 0; {} if there are no valid ones."""
    for name in (_name(rank), NAME):
        with suppress(OSError, ValueError, RecursionError):
            state = json.loads((directory / name).read_text(encoding="utf-8"))
            if isinstance(state, dict) and all(isinstance(state.get(key), int) for key in ("rank", "step", "attempt")):
                return state
    return {}


def _name(rank: int) -> str:
    return f"perf_callbacks.{rank}.json" if rank else NAME
