"""Counters of a fit, in their own file in a checkpoint directory. A checkpoint without them works as before."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _path(directory: Path, rank: int) -> Path:
    return directory / f"perf_callbacks_{rank}.json"


def write(directory: Path, rank: int, state: Mapping[str, Any]) -> None:
    """Write one rank's counters beside its checkpoint, as a whole or not at all."""
    path = _path(directory, rank)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(dict(state)), encoding="utf-8")
    unfinished.replace(path)


def read(directory: Path, rank: int) -> dict[str, Any]:
    """Read a rank's counters, or else those of rank 0, from which the run and its step are known.

    Empty if the checkpoint holds no valid counters.
    """
    for path in (_path(directory, rank), _path(directory, 0)):
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(state, dict) and all(isinstance(state.get(name), int) for name in ("rank", "step", "attempt")):
            return state
    return {}
