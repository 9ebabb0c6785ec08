"""Rule `data`: the steps wait for the loader."""

import math

from perf_callbacks.advice.facts import Facts, Measured, finding, interrupting, timed
from perf_callbacks.advice.loaded_batches import STARVED
from perf_callbacks.kernel.plural import plural
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.units import GB

HEADROOM = 1.25
"""Workers must be faster than the steps by this factor, since the time to load a batch varies."""

MOST_WORKERS = 16

HAND_OVER_SECONDS = 0.002
"""Time to receive a batch, which more workers don't shorten: they hand over a file descriptor per tensor.

A batch of two tensors took 2.0 to 2.7 ms on a quiet machine.
"""

CONTENTION = 0.1
"""Seconds that training loses per second of a worker's computation, because CPUs share caches and clocks.

In four pairs of runs on two CPUs of a quiet machine, forward and backward lost 0.04 to 0.13 s.
"""

WORKER_BYTES = 40e6
"""Pages that a forked worker doesn't share; `benchmarks/advice_figures.py worker` at 0da62bbb saw 24 to 26 MB."""

IN_WORK = 2
"""Batches in a worker's memory besides the prefetched ones: the samples, and the batch that is made of them."""

MOST_PREFETCH = 16

CALM = 0.75
"""Workers load fast enough on average if at least this share of the groups of steps hardly waits for data."""

LOW, HIGH = 0.7, 1.4
"""Least and most saving of workers, relative to the estimate: see 32 pairs of runs in `docs/verdict-evidence.md`."""

MOST_UNLOADED = 1.25
"""Largest saving on a CPU if workers load instead of the training thread, relative to the waits for data."""

MOST_RESTARTED = 1.6
"""Largest gain from persistent workers, relative to the waits for the start of workers.

Seven programs of `benchmarks/promises.py` gained 1.34 to 1.56 times the waits: see `docs/verdict-evidence.md`.
"""


@timed
def data(facts: Facts, measured: Measured) -> Finding | None:
    """Advise workers that load batches while the model computes. The wait and the CPUs decide their number.

    Without workers, the wait is the time to load a batch. If the training thread waits for n workers, each needs the
    time of n steps to load a batch.
    """
    step, wait = measured.step_seconds, measured.stage("data")
    summary = measured.summary
    # The rule `restarts` covers waits for the start of workers.
    restarts = min(wait, facts.epoch_wait_in_rows * summary.steps / max(1, summary.included_steps))
    step, wait = step - restarts, wait - restarts
    busy, workers = step - wait, facts.workers or 0
    if wait <= HAND_OVER_SECONDS or (workers and wait < STARVED * step):
        return None
    took = f"Waiting for data took {measured.share(wait):.0%} of the run"
    took += f": num_workers={workers}" if facts.workers is not None else ""
    line = None if workers else facts.data_line
    took += f", mostly at {line}" if line else ""
    if workers and (facts.calm_share or 0.0) >= CALM:
        return _prefetch(facts, measured, took, busy=busy, wait=wait)
    cpus = facts.cpus or 1
    # A device works on while the host loads, so its idle time is less than the time to load a batch.
    load = step * workers if workers else step if facts.accelerator else wait
    useful = min(MOST_WORKERS, cpus, math.ceil(HEADROOM * load / busy) if busy > 0 else cpus)
    room = _room(facts)
    wanted = useful if room is None else min(useful, room)
    if wanted < useful:
        took += f"; memory leaves room for {wanted or 'no'} worker{'s' * (wanted != 1)}"
    computed = 1.0 if workers else _computed(facts, measured, wait)
    threads = 0 if facts.accelerator else facts.threads  # on a device, the host's own work is in `load`
    free = cpus if facts.free_cpus is None else facts.free_cpus
    beside = busy + HAND_OVER_SECONDS + (0.0 if facts.accelerator else CONTENTION * computed * wait)
    available = min(cpus, max(1, threads) + free)
    won = step - faster(load, beside, max(1, wanted), available, threads, computed=computed)
    if wanted > workers and won > wait / 4:
        promised, most = measured.share(won), measured.share(wait)
        if not workers:
            promised, most = measured.with_cpu(promised), measured.with_cpu(most)
            if not facts.accelerator:  # the model gets faster, too, if its thread no longer loads batches
                _, most = interrupting(most, MOST_UNLOADED)
        share, low = min(HIGH * promised, most), measured.low(LOW * promised, "data")
        return finding("data", share, took, _workers(facts, wanted), low=low, line=line)
    if useful <= workers:
        took += f"; {plural(cpus, 'CPU')} {'leaves' if cpus == 1 else 'leave'} no room for more workers"
    elif wanted == useful:
        took += "; the CPU is busy" if cpus == 1 else f"; {cpus} CPUs are busy"
    share, remedy = measured.share(wait), "caching prepared samples, or cheaper transforms"
    return finding("data", share, took, remedy, low=measured.low(share, "data"), line=line)


def _prefetch(facts: Facts, measured: Measured, took: str, *, busy: float, wait: float) -> Finding | None:
    workers = facts.workers or 1
    missing = HEADROOM * facts.burst_seconds / (workers * busy) if busy > 0 else MOST_PREFETCH
    wanted = min(MOST_PREFETCH, max(2 * facts.prefetch, math.ceil(facts.prefetch + missing)))
    took += f" with {facts.prefetch} batches each in advance, in bursts"
    while wanted > facts.prefetch and (_room(facts, wanted) or workers) < workers:
        wanted -= 1
    share = measured.share(wait)
    own = f"DataLoader(num_workers={workers}, prefetch_factor={wanted})"
    remedy = facts.option("dataloader_prefetch_factor", wanted) or own
    if wanted <= facts.prefetch:
        took, remedy = f"{took}; memory leaves no room for more", "samples that take equally long to load"
    return finding("data", share, took, remedy, low=measured.low(LOW * share, "data"))


def _room(facts: Facts, prefetch: int | None = None) -> int | None:
    """Number of workers for which host memory suffices; None: memory or batch size is unknown."""
    if facts.memory_available is None or facts.batch_bytes is None:
        return None
    parts = facts.memory.parts if facts.memory is not None and facts.accelerator is None else None
    taken = 0.0 if parts is None else ((parts.peak_gb or 0.0) - (parts.weights_gb or 0.0)) * GB  # by training itself
    each = WORKER_BYTES + ((prefetch or facts.prefetch) + IN_WORK) * facts.batch_bytes
    return max(0, int((facts.memory_available / facts.local_ranks - taken) / each))


@timed
def restarts(facts: Facts, measured: Measured) -> Finding | None:
    """Advise persistent workers if the wait for an epoch's first batch exceeds the time to load a batch.

    If n workers keep up with training, that is at most the time of n steps. The steps after the start of workers are
    slower too, so persistent workers may save more than the wait.
    """
    workers = facts.workers or 0
    if not workers or facts.persistent or not facts.epochs:
        return None
    took = facts.epoch_wait_seconds * measured.summary.steps
    busy = max(0.0, measured.step_seconds - measured.stage("data"))
    won = took - facts.epochs * workers * busy
    if won <= 0:
        return None
    noun = "an epoch" if facts.epochs == 1 else f"{facts.epochs:,} epochs"
    share, own = took / measured.seconds, f"DataLoader(num_workers={workers}, persistent_workers=True)"
    evidence = f"Waiting for the first batch of {noun} took {share:.0%} of the run: workers are started for each epoch"
    remedy = facts.option("dataloader_persistent_workers", value=True) or own
    low, most = LOW * won / measured.seconds, min(MOST_RESTARTED * share, (share + 1) / 2)
    return finding("data", most, evidence, remedy, low=measured.low(low, "data"))


def faster(load: float, busy: float, workers: int, cpus: float, threads: int, *, computed: float = 1.0) -> float:
    """Predict the seconds of a step with workers, from the seconds to load a batch and those of a step without loading.

    The longest of three times counts: computing, loading by all workers, and the CPU time of both per CPU. `cpus` are
    those that training uses now, plus idle ones: a worker on a busy CPU costs training as much time as it saves.
    `threads` CPUs are busy in a step without loading. In the part `computed` of `load`, a CPU computes; in the rest,
    the loader waits, for example for a disk.

    >>> faster(load=0.5, busy=1.0, workers=1, cpus=8, threads=1)
    1.0
    >>> faster(load=1.0, busy=1.0, workers=2, cpus=2, threads=2)
    1.5
    >>> faster(load=0.5, busy=1.0, workers=1, cpus=1.25, threads=1)
    1.2
    """
    return max(busy, load / workers, (computed * load + busy * threads) / cpus)


def _computed(facts: Facts, measured: Measured, wait: float) -> float:
    if not facts.idle_share or not measured.steps_seconds:
        return 1.0
    idle = facts.idle_share * measured.seconds * measured.step_seconds / measured.steps_seconds
    return max(0.0, 1 - idle / wait)


def _workers(facts: Facts, wanted: int) -> str:
    own = f"DataLoader(num_workers={wanted})"
    if facts.workers is None:
        own = f"loading in the background, as {own} does"
    remedy = facts.option("dataloader_num_workers", wanted) or own
    return remedy + ", if the data set divides its samples by torch.utils.data.get_worker_info()" * facts.iterable
