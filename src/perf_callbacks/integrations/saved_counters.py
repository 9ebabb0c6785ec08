"""Counters of a fit, such as its step, saved in a separate file of a checkpoint directory.

Training can also resume from a checkpoint without this file. The state that the framework saves is not changed, so a
resumed run ends with the same state as an uninterrupted run.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from perf_callbacks.kernel.foreign_errors import let_pass

NAME = "perf_callbacks.json"

log = logging.getLogger("perf_callbacks")


def write(directory: Path, rank: int, state: Mapping[str, Any]) -> None:
    """Write the counters of a rank into a checkpoint directory. Each rank has its own file."""
    _write(directory / (f"perf_callbacks.{rank}.json" if rank else NAME), state)


def read(directory: Path, rank: int) -> dict[str, Any]:
    """Read the counters of a rank, or the counters of rank 0 if the checkpoint has none for this rank.

    Return an empty dictionary if the checkpoint holds no valid counters.
    """
    of_rank = (f"perf_callbacks.{rank}.json", f"perf_callbacks_{rank}.json")  # the second name is the old one
    for name in (*(of_rank if rank else of_rank[1:]), NAME, "perf_callbacks_0.json"):
        state = _read(directory / name)
        if _valid(state):
            return state
    return {}


def _valid(state: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(state, dict) and all(isinstance(state.get(name), int) for name in ("rank", "step", "attempt"))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        let_pass(error)
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file completely or not at all. If writing fails, log a warning, and training goes on."""
    unfinished = path.with_suffix(".tmp")
    try:
        unfinished.unlink(missing_ok=True)  # left by a killed process, or a link to a file of the user
        with unfinished.open("x", encoding="utf-8") as file:
            json.dump(dict(content), file)
        unfinished.replace(path)
    except OSError as error:
        let_pass(error)
        log.warning("perf_callbacks: the checkpoint has no counters: %s", error)
