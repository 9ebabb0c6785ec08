"""Ranks on devices that wait for a slow rank where no wait is seen: a healthy rank is never named in its place."""

import random

from rows import each_row

from perf_callbacks.kernel.engine.steps import Columns
from perf_callbacks.stragglers import signals
from perf_callbacks.stragglers.peers import DATA, DEVICE, HOST
from perf_callbacks.stragglers.search import Stragglers

STEP, WINDOW, WINDOWS = 0.2, 50, 6


def job(ranks, *, gpu=None, host=None, data=None, hidden=True, sharded=False, pause=None, seed=0):
    """The search in a job under DDP on devices: 30 % forward, 60 % backward, 6 % optimizer.

    Args:
        ranks: Number of ranks.
        gpu: For each slow GPU: by which factor.
        host: For each slow host: by which part of a step.
        data: For each rank that waits for data: for which part of a step.
        hidden: True: the wait for the others is within the optimizer. Otherwise it ends the backward.
        sharded: True: forward and optimizer hold waits, and are no signals.
        pause: Step and rank of a device that pauses for a second in its backward.
        seed: Of the noise.
    """
    chance, stragglers = random.Random(seed), Stragglers()
    for first in range(1, WINDOW * WINDOWS + 1, WINDOW):
        rows = [[] for _ in range(ranks)]
        for step in range(first, first + WINDOW):
            times = []
            for rank in range(ranks):
                speed = (gpu or {}).get(rank, 1.0) * (1 + chance.gauss(0, 0.003)) * STEP
                other = STEP * (0.02 * (1 + chance.gauss(0, 0.05)) + (host or {}).get(rank, 0.0))
                loading = STEP * (0.02 * (1 + chance.gauss(0, 0.05)) + (data or {}).get(rank, 0.0))
                times.append([loading, 0.3 * speed, 0.6 * speed + (pause == (step, rank)), 0.06 * speed, other])
            last = max(map(sum, times))
            for row, (loading, forward, backward, optimizer, other) in zip(rows, times, strict=True):
                wait = last - (loading + forward + backward + optimizer + other)
                places = (0.0, wait) if hidden else (wait, 0.0)
                row.append((loading, forward, backward + places[0], optimizer + places[1], 0.0, 0.0, other))
        stragglers.window(
            range(first, first + WINDOW), {rank: sent(first, row, sharded) for rank, row in enumerate(rows)}
        )
    return stragglers


def sent(first, row, sharded):
    """The signals of a rank from the stages of its steps."""
    steps = [None] * WINDOW
    zeros, numbers = [0.0] * WINDOW, range(first, first + WINDOW)
    seconds = [sum(stages) for stages in row]
    stages = [list(column) for column in zip(*row, strict=True)]
    sizes = [4] * WINDOW
    columns = Columns(numbers, steps, sizes, sizes, steps, steps, zeros, zeros, seconds, stages)
    return signals.of_stages(columns, sharded=sharded)


def named(stragglers):
    return {(loss.ranks or (loss.rank,), loss.cause) for loss in stragglers.costliest(8)}


@each_row("ranks", [2, 3, 4, 5, 8])
def test_no_healthy_rank_is_named_if_the_wait_for_a_slow_gpu_is_hidden(ranks):
    stragglers = job(ranks, gpu={0: 1.2})
    assert named(stragglers) == set()
    assert stragglers.slow == []
    assert (stragglers.undecided_steps, stragglers.slowdown is None) == ((300, True) if ranks < 5 else (0, False))


@each_row("slow", [{"gpu": {0: 1.2, 1: 1.2}}, {"host": dict.fromkeys((1, 2, 3), 0.2), "sharded": True}])
def test_no_half_is_named_for_its_devices_and_no_majority_for_its_hosts(slow):
    stragglers = job(4, **slow)
    assert (named(stragglers), stragglers.undecided_steps) == (set(), 300)


@each_row("ranks", [2, 3, 4, 8])
def test_a_hidden_wait_in_a_single_step_names_no_healthy_rank(ranks):
    assert named(job(ranks, pause=(120, 0))) == set()


@each_row(("ranks", "slow"), [(3, {1}), (4, {1}), (8, {5}), (8, {1, 2, 5})])
def test_a_minority_of_slow_gpus_is_named(ranks, slow):
    stragglers = job(ranks, gpu=dict.fromkeys(slow, 1.25), hidden=False)
    assert named(stragglers) == {(tuple(sorted(slow)), DEVICE)}
    assert stragglers.undecided_steps == 0


@each_row("ranks", [2, 4, 8])
def test_a_slow_host_or_loader_is_named_on_any_number_of_devices(ranks):
    assert named(job(ranks, host={1: 0.2}, hidden=False)) == {((1,), HOST)}
    assert named(job(ranks, data={1: 0.2}, hidden=False)) == {((1,), DATA)}


def test_healthy_ranks_are_compared_and_not_named():
    jobs = [
        job(ranks, hidden=hidden, seed=seed) for ranks in (2, 4, 8) for hidden in (False, True) for seed in range(3)
    ]
    assert [named(search) for search in jobs] == [set()] * len(jobs)
    assert {search.undecided_steps for search in jobs} == {0}
