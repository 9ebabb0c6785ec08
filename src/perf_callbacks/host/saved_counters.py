"""Our counters, in a file of their own in a checkpoint directory: a checkpoint without it is as good as ever."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _path(directory: Path, rank: int) -> Path:
    return directory / f"perf_callbacks_{rank}.json"


def write(directory: Path, rank: int, state: Mapping[str, Any]) -> None:
    """Put one rank's counters beside its checkpoint, whole or not at all."""
    path = _path(directory, rank)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(dict(state)), encoding="utf-8")
    unfinished.replace(path)


def read(directory: Path, rank: int) -> dict[str, Any]:
    """A rank's counters, else those of the first: of a rank that was not there the run and its step are known.

    Empty where the checkpoint holds none that make sense.
    """
    for path in (_path(directory, rank), _path(directory, 0)):
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(state, dict) and all(isinstance(state.get(name), int) for name in ("rank", "step", "attempt")):
            return state
    return {}
