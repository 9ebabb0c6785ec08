"""Rule `data`: the steps wait for the loader."""

import math

from perf_callbacks.advice.facts import Facts, Machine, Measured, finding
from perf_callbacks.core.records import Finding

HEADROOM = 1.25
"""Workers are so many times faster than the steps, since no two batches take equally long."""

MOST_WORKERS = 16

STARVED = 0.15
"""Share of a step's time from which on a wait shows that the workers are too slow.

Shorter waits are the hand-over of a batch: 9 to 15 ms on a busy machine, however fast the loader.
"""


def data(machine: Machine, facts: Facts, measured: Measured | None) -> Finding | None:
    """Advise workers that load batches while the model computes, as many as the wait and the CPUs ask for.

    Without workers the wait is the time that a batch takes to load. With workers the loader is what limits the run, so
    each of them takes as many steps for a batch as there are workers.
    """
    if measured is None or not measured.known:
        return None
    step, wait = measured.step_seconds, measured.stage("data")
    busy, workers = step - wait, facts.workers or 0
    if wait <= 0 or (workers and wait < STARVED * step):
        return None
    took = f"Waiting for data took {measured.share(wait):.0%} of the run"
    took += f": num_workers={workers}" if facts.workers is not None else ""
    cpus = max(1, (machine.cpus or 1) // machine.local_world_size)
    load = step * workers if workers else wait
    wanted = min(MOST_WORKERS, cpus, math.ceil(HEADROOM * load / busy) if busy > 0 else cpus)
    won = step - faster(load, busy, wanted, cpus, 1 if machine.accelerator else facts.threads)
    if wanted > workers and won > wait / 4:
        return finding("data", measured.share(won), took, _workers(facts, wanted))
    spare = f"; {cpus} CPUs leave no room for more workers" if wanted <= workers else f"; {cpus} CPUs are busy"
    return finding("data", measured.share(wait), took + spare, "caching prepared samples, or cheaper transforms")


def faster(load: float, busy: float, workers: int, cpus: int, threads: int) -> float:
    """Predict the seconds of a step with workers: the slowest of computing, loading, and all CPUs together.

    >>> faster(load=0.5, busy=1.0, workers=1, cpus=8, threads=1)
    1.0
    >>> faster(load=1.0, busy=1.0, workers=2, cpus=2, threads=2)
    1.5
    """
    return max(busy, load / workers, (load + busy * threads) / cpus)


def _workers(facts: Facts, wanted: int) -> str:
    if facts.door == "transformers":
        return f"TrainingArguments(dataloader_num_workers={wanted})"
    if facts.workers is None:
        return f"loading in the background, as DataLoader(num_workers={wanted}) does"
    return f"DataLoader(num_workers={wanted})"
