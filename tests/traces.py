"""Synthetic signals of ranks: quiet steps, noise, batches of uneven lengths, and faults put into them."""

import random
from array import array

from perf_callbacks.stragglers.peers import CAUSES, LOCAL, STEP, WORK

COLUMNS = (STEP, LOCAL, "gc", "data", "steal")


def windows(ranks, steps, *, seed=0, noise=0.01, tail=0.0, ragged=0.0, faults=(), slow=None, length=50):
    """Yield the first step and the signals of each rank, window by window.

    `faults` are tuples of step, rank, cause and seconds, `slow` is a rank, a cause and seconds of each of its steps.
    Steps take about a second.
    """
    chance = random.Random(seed)
    hit = {(step, rank): (cause, seconds) for step, rank, cause, seconds in faults}
    for first in range(1, steps + 1, length):
        signals = {rank: {name: array("f") for name in COLUMNS} for rank in range(ranks)}
        for step in range(first, first + length):
            rows = []
            for rank in range(ranks):
                size = chance.lognormvariate(0, ragged) if ragged else 1.0
                signals[rank].setdefault(WORK, array("f")).append(size)
                rows.append(_step(chance, noise, tail, size))
            for rank, row in enumerate(rows):
                cause, seconds = hit.get((step, rank), (None, 0.0))
                row[cause] = row.get(cause, 0.0) + seconds
                if slow is not None and rank == slow[0]:
                    row[slow[1]] += slow[2]
            pace = max(sum(row.values()) for row in rows) + 0.1
            for rank, row in enumerate(rows):
                columns = {**row, LOCAL: sum(row.values()), STEP: pace}
                for name in COLUMNS:
                    signals[rank][name].append(columns[name])
        yield first, signals


def _step(chance, noise, tail, size):
    host = 0.9 * size * max(0.0, 1 + chance.gauss(0, noise)) + (chance.random() < tail) * 0.1 * chance.random()
    return dict.fromkeys(CAUSES[:1], 0.0) | {
        "data": 0.05,
        "steal": 0.001 * chance.random(),
        "device": 0.0,
        "host": host,
    }
