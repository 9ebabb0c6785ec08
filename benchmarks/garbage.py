"""What garbage collection costs ranks that wait for each other, policy by policy, in turns within one job.

python benchmarks/garbage.py --ranks 2 --cycles 12

Each rank holds many objects, makes some in each step, keeps some of those for a while, and then meets the others, as
they do in an all-reduce. Ranks make different numbers of objects, as those do that read different data. The policies
of torchtitan and Megatron are stated here as their code has them; nothing of theirs is run.
"""

import argparse
import gc
import itertools
import os
import socket
import statistics
import time
from collections import deque

import torch.distributed as dist
import torch.multiprocessing as mp
from turns import interval

from perf_callbacks import PerfConfig
from perf_callbacks.garbage.item import ScheduledCollection
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.fit.item import Fit
from perf_callbacks.kernel.process import resident_memory
from perf_callbacks.kernel.process.gc_observer import GcObserver

SETTLE = 8
"""Steps at the start of a turn that don't count: a policy begins in them."""


class Auto:
    """The interpreter's own."""

    def end_step(self, step):
        """Nothing is done."""

    def close(self):
        gc.unfreeze()
        gc.enable()


class Ours(Auto):
    def __init__(self, level, every):
        config = PerfConfig(gc=level, gc_interval=every)
        self._upkeep = ScheduledCollection(
            Fit(config=config, environment=environment.read(), step=0, memory=resident_memory.in_use)
        )

    def end_step(self, step):
        if step >= self._upkeep.due:
            self._upkeep.step_ended(step)

    def close(self):
        self._upkeep.closed()


class Torchtitan(Auto):
    """Young collections at the same step; full ones never."""

    def __init__(self, every):
        self._every = every
        gc.disable()
        gc.collect(1)

    def end_step(self, step):
        if step > 1 and step % self._every == 0:
            gc.collect(1)


class Megatron(Auto):
    """Full collections at the same step, and as a rule none."""

    def __init__(self, every):
        self._every = every
        gc.disable()
        gc.collect()

    def end_step(self, step):
        if self._every and step % self._every == 0:
            gc.collect()


def policies(every):
    return {
        "auto": Auto,
        "freeze": lambda: Ours("freeze", every),
        "sync": lambda: Ours("sync", every),
        f"torchtitan's, {every}": lambda: Torchtitan(every),
        "Megatron's, never": lambda: Megatron(0),
        f"Megatron's, {every}": lambda: Megatron(every),
    }


def turn(make, options, rank, window):
    """One policy for a while: the end of each step, and the pauses in it."""
    pauses, ends, paused = [], [], []
    observer = GcObserver(lambda pause: pauses.append(pause.seconds))
    observer.install()
    policy = make()
    for step in range(1, SETTLE + options.steps + 1):
        window.append([[number] for number in range(options.made * (4 + rank) // 4)])
        time.sleep(options.step_seconds)
        policy.end_step(step)
        dist.barrier()
        ends.append(time.perf_counter())
        paused.append(sum(pauses))
        pauses.clear()
    policy.close()
    observer.remove()
    return [after - before for before, after in itertools.pairwise(ends[SETTLE - 1 :])], paused[SETTLE:]


def rank(number, options, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=number, world_size=options.ranks)
    held = [[number] for number in range(options.held)]
    window = deque(maxlen=options.window)
    blocks = {name: [] for name in policies(options.every)}
    for cycle, (name, make) in itertools.product(range(options.cycles + 1), policies(options.every).items()):
        everyone = [None] * options.ranks
        dist.all_gather_object(everyone, turn(make, options, number, window))
        gc.collect()
        if cycle:  # the first one is for warming up
            steps = everyone[0][0]
            worst = map(max, zip(*[paused for _, paused in everyone], strict=True))
            blocks[name].append((statistics.mean(steps), max(steps), sum(worst) / len(steps)))
    if number == 0:
        report(blocks, options, len(held))
    dist.destroy_process_group()


def report(blocks, options, held):
    print(f"{options.ranks} ranks, {held:,} objects held, {options.cycles} cycles of {options.steps} steps")
    print(f"{'ms':<20}{'step':>9}{'less than auto':>24}{'worst step':>12}{'waited for pauses, a step':>27}")
    for name, values in blocks.items():
        mean, worst, waited = (statistics.median(column) * 1e3 for column in zip(*values, strict=True))
        gained = [(auto[0] - ours[0]) * 1e3 for auto, ours in zip(blocks["auto"], values, strict=True)]
        found = interval(gained)
        less = f"{statistics.median(gained):.2f} [{found.low:.2f}, {found.high:.2f}]" if name != "auto" else ""
        print(f"{name:<20}{mean:>9.2f}{less:>24}{worst:>12.1f}{waited:>27.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cycles", type=int, default=12)
    parser.add_argument("--steps", type=int, default=200, help="of one turn that count")
    parser.add_argument("--every", type=int, default=50, help="steps between young collections")
    parser.add_argument("--held", type=int, default=400_000, help="objects that live as long as the job")
    parser.add_argument("--made", type=int, default=2000, help="objects made in each step")
    parser.add_argument("--window", type=int, default=100, help="steps for which these are kept")
    parser.add_argument("--step-seconds", type=float, default=0.002)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        unused = free.getsockname()[1]
    chosen = parser.parse_args()
    mp.spawn(rank, args=(chosen, unused), nprocs=chosen.ranks)
