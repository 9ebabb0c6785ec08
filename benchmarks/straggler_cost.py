"""What does the search for stragglers cost: per step, per window on each rank, and per window on rank 0?

    OMP_NUM_THREADS=1 python benchmarks/straggler_cost.py

CPU time, the least of several turns, and memory. The step is the hook on one parameter; the wait is its two marks; the
window is what turns 50 steps into signals; rank 0 compares all ranks in a side thread, and sleeps between slices.
"""

import gc
import random
import time
import tracemalloc
from array import array
from collections import deque
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn

from perf_callbacks.kernel.engine.marks import BACK, BEGIN, END
from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.engine.steps import Columns
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.process.waits import WAITS
from perf_callbacks.stragglers.gradient_moments import GradientMoments
from perf_callbacks.stragglers.local_times import LocalTimes, Moment
from perf_callbacks.stragglers.search import Stragglers
from perf_callbacks.stragglers.signals import of_local_times

TURNS, BACKWARDS, WINDOW = 15, 400, 50
RANKS = (8, 64, 512, 4096)


def cpu(action):
    began = time.thread_time()
    action()
    return time.thread_time() - began


def hook():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.ones(2, 8)

    def turn():
        for _ in range(BACKWARDS):
            model(x).sum().backward()

    without, again, timed = [], [], []
    for _ in range(TURNS):
        without.append(cpu(turn))
        moments = GradientMoments(model[0].weight, time.perf_counter)
        timed.append(cpu(turn))
        moments.close()
        again.append(cpu(turn))
    least = min(without)
    cost, control = [1e6 * (min(one) - least) / BACKWARDS for one in (timed, again)]
    print(f"per step: {cost:.1f} us, control {control:.1f} us")


def wait():
    """Time the marks around a barrier of a single rank, which doesn't wait."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    work, tape = dist.barrier(async_op=True), Tape()
    tape.begin(0.0)

    def turn():
        for _ in range(BACKWARDS):
            work.wait()
        tape.pairs.clear()

    without, again, timed = [], [], []
    for _ in range(10 * TURNS):
        without.append(cpu(turn))
        leave = WAITS.watch(turn, tape, time.perf_counter)
        timed.append(cpu(turn))
        leave()
        again.append(cpu(turn))
    least = min(without)
    cost, control = [1e6 * (min(one) - least) / BACKWARDS for one in (timed, again)]
    print(f"per wait: {cost:.2f} us, control {control:.2f} us")
    dist.destroy_process_group()


def window():
    moments = deque()
    times = LocalTimes(moments, reduced=True)
    numbers = range(1, WINDOW + 1)
    stages = [tuple([0.1] * WINDOW) for _ in STAGES]
    nothing = (None,) * WINDOW
    steps = Columns(
        numbers, nothing, (4,) * WINDOW, (32,) * WINDOW, nothing, nothing, (0.0,) * WINDOW, (0.0,) * WINDOW,
        (0.6,) * WINDOW, stages,
    )  # fmt: skip
    marks = (BEGIN[Stage.DATA], BACK, BEGIN[Stage.FORWARD], BACK, BEGIN[Stage.BACKWARD], BACK)
    marks = (*marks, BEGIN[Stage.OPTIMIZER], BACK, END)

    def turn(began):
        pairs, now = [], began
        for _ in numbers:
            for mark in marks:
                now += 0.1
                if len(pairs) % (2 * len(marks)) == 10:  # the end of the backward
                    moments.append(Moment(now - 0.01, b"3277653508 136843134 389\n", True))
                pairs += [mark, now]
        return cpu(lambda: (times.marks_read(pairs, numbers), of_local_times(steps, times.take(numbers))))

    least = min([turn(1000.0 * place) for place in range(TURNS * 3)])
    print(f"per window of {WINDOW} steps on each rank: {1e6 * least:.0f} us, {1e6 * least / WINDOW:.1f} us per step")


def signals_of(ranks, slow):
    """Signals of a window, in which some ranks are slow."""
    chance = random.Random(0)
    signals = {}
    for rank in range(ranks):
        data = array("f", [0.05 + 0.01 * chance.random() for _ in range(WINDOW)])
        steal = array("f", [0.002 * chance.random() for _ in range(WINDOW)])
        pace = 1.3 if rank in slow else 1.0
        local = array("f", [pace + chance.gauss(0, 0.01) + part for part in data])
        signals[rank] = {
            "step": array("f", [1.1] * WINDOW), "local": local, "gc": array("f", [0.0] * WINDOW), "data": data,
            "steal": steal,
        }  # fmt: skip
    return signals


def memory(slow):
    """Measure what the search keeps after four windows, and its peak, both beyond the signals of these windows."""
    ranks = RANKS[-1]
    windows = [signals_of(ranks, slow) for _ in range(4)]
    stragglers = Stragglers()
    tracemalloc.start()
    for signals in windows:
        stragglers.window(range(WINDOW), signals)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{ranks} ranks, {len(slow)} slow: {kept / 1e6:.1f} MB kept, peak {peak / 1e6:.1f} MB, beyond the signals")


def analysis(slow):
    """Time the third window, in which these ranks are named."""
    for ranks in RANKS:
        signals = signals_of(ranks, slow)
        turns = []
        for _ in range(5):
            stragglers = Stragglers()
            for _ in range(2):
                stragglers.window(range(WINDOW), signals)
            slices = [time.thread_time()]
            stragglers.window(range(WINDOW), signals, rest=lambda noted=slices: noted.append(time.thread_time()))
            slices.append(time.thread_time())
            longest = max([end - begin for begin, end in pairwise(slices)])
            turns.append((slices[-1] - slices[0], longest))
        least, longest = min(turns)
        print(
            f"{ranks} ranks, {len(slow)} slow, per window on rank 0: {1e3 * least:.1f} ms, "
            f"longest slice {1e3 * longest:.2f} ms"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    hook()
    wait()
    window()
    gc.disable()  # as in a fit with gc="sync"
    analysis(())
    analysis((0, 1, 2))
    memory(())
    memory((0, 1, 2))
