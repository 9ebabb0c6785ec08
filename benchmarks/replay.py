"""Which ranks slowed down a recorded job, and what did uneven work cost? The product's own search on given times.

    PYTHONPATH=src python benchmarks/replay.py FILE…
    PYTHONPATH=src python benchmarks/replay.py --generate FILE --ranks 64 --slow 7 20 41   # write a job of known faults

A FILE is one JSON object: `steps` (numbers), `ranks`, and optionally `step_seconds`. A rank is an object with `rank`,
`compute_seconds` of each step, and optionally `stage`, `data_rank`, `gc_seconds`, `data_seconds` and `tokens`. Other
keys are not read. The replay prints one JSON object per file.

A generated job follows a published method: each rank takes one second per step, with 2 % of noise, and the slow ranks
take longer by `--by`. See docs/stragglers.md for the sources.
"""

import argparse
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perf_callbacks.stragglers.peers import DATA, GC, LOCAL, STEP, WORK
from perf_callbacks.stragglers.search import Stragglers

WINDOW, MOST_NAMED = 50, 8
STEPS, NOISE = 200, 0.02

COLUMNS = {"gc_seconds": GC, "data_seconds": DATA, "tokens": WORK}
"""Optional columns of a rank, by the signal that they become."""


def signals_of(job: Mapping[str, Any]) -> dict[int, dict[str, list[float]]]:
    """Return the signals of each rank. Local times are those of computation, collections and waits for data.

    Without `step_seconds`, a step takes as long as its slowest rank.
    """
    found = {}
    for one in job["ranks"]:
        columns = {name: [*map(float, one[key])] for key, name in COLUMNS.items() if one.get(key)}
        parts = [columns[name] for name in (GC, DATA) if name in columns]
        local = [sum(row) for row in zip(map(float, one["compute_seconds"]), *parts, strict=True)]
        found[int(one["rank"])] = {**columns, LOCAL: local}
    longest = [max(row) for row in zip(*[columns[LOCAL] for columns in found.values()], strict=True)]
    pace = [*map(float, job.get("step_seconds") or longest)]
    return {rank: {**columns, STEP: pace} for rank, columns in found.items()}


def roles_of(job: Mapping[str, Any]) -> dict[int, dict[str, int]]:
    """Return the coordinates of each rank."""
    names = {"stage": "pp", "data_rank": "dp"}
    return {int(one["rank"]): {name: one[key] for key, name in names.items() if key in one} for one in job["ranks"]}


def replay(job: Mapping[str, Any]) -> dict[str, Any]:
    """Search a recorded job window by window, as a live job, and return the result."""
    signals, roles, stragglers = signals_of(job), roles_of(job), Stragglers()
    steps = len(job["steps"])
    length = min(WINDOW, -(-steps // 2))  # a slow rank is named after two windows
    for first in range(0, steps, length):
        part = slice(first, first + length)
        ranks = {rank: {name: column[part] for name, column in one.items()} for rank, one in signals.items()}
        stragglers.window(job["steps"][part], ranks, roles)
    return {
        "slowdown": None if stragglers.slowdown is None else round(stragglers.slowdown, 4),
        "named": [
            {"ranks": [*(one.ranks or (one.rank,))], "cause": one.cause, "seconds_lost": round(one.seconds_lost, 4)}
            for one in stragglers.costliest(MOST_NAMED)
        ],
        "uneven_batches_seconds": round(stragglers.uneven_batches_seconds, 4),
        "uneven_stages_seconds": round(stragglers.uneven_stages_seconds, 4),
    }


def generate(ranks: int, slow: Iterable[int], by: float, seed: int) -> dict[str, Any]:
    """Return a job in which some ranks are slow."""
    chance, slow = random.Random(seed), {*slow}
    times: list[Sequence[float]] = [
        [(1 + by * (rank in slow)) * max(0.1, 1 + chance.gauss(0, NOISE)) for _ in range(STEPS)]
        for rank in range(ranks)
    ]
    return {
        "job": f"generated: {ranks} ranks, {sorted(slow)} slow by {by:.0%}, seed {seed}",
        "steps": [*range(1, STEPS + 1)],
        "step_seconds": [round(max(row), 4) for row in zip(*times, strict=True)],
        "ranks": [
            {"rank": rank, "compute_seconds": [round(seconds, 4) for seconds in column]}
            for rank, column in enumerate(times)
        ],
    }


def main() -> None:
    """Replay the given files, or generate one."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("files", nargs="+", type=Path, metavar="FILE")
    arguments.add_argument("--generate", action="store_true", help="write a job with slow ranks to FILE")
    arguments.add_argument("--ranks", type=int, default=64)
    arguments.add_argument("--slow", type=int, nargs="*", default=[7, 20, 41])
    arguments.add_argument("--by", type=float, default=0.3, help="part by which the slow ranks take longer")
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    for file in given.files:
        if given.generate:
            file.write_text(json.dumps(generate(given.ranks, given.slow, given.by, given.seed)))
        else:
            print(json.dumps(replay(json.loads(file.read_text()))))


if __name__ == "__main__":
    main()
