"""Sets of slow ranks, uneven work and chance, on synthetic jobs."""

import random

import pytest
import traces
from rows import each_row

from perf_callbacks.stragglers.peers import GC, LOCAL, STEP, WORK
from perf_callbacks.stragglers.search import Stragglers

ROLES = {rank: {"pp": rank // 4, "dp": rank % 4} for rank in range(16)}


def a_job(times, sizes=None):
    """Signals of ranks from their local times, rank by rank. A step takes as long as its slowest rank."""
    pace = [max(row) for row in zip(*times, strict=True)]
    signals = {rank: {STEP: pace, LOCAL: column} for rank, column in enumerate(times)}
    for rank, column in enumerate(sizes or ()):
        signals[rank][WORK] = column
    return signals


def searched(signals, *, roles=None, length=50):
    """The search, after all windows of a job."""
    stragglers = Stragglers()
    steps = len(signals[0][LOCAL])
    for first in range(0, steps, length):
        part = slice(first, first + length)
        window = {rank: {name: column[part] for name, column in one.items()} for rank, one in signals.items()}
        stragglers.window(range(first + 1, first + 1 + len(window[0][LOCAL])), window, roles)
    return stragglers


def noisy(factors, *, steps=200, noise=0.02, seed=0):
    """Local times of ranks around these multiples of a second."""
    chance = random.Random(seed)
    return [[factor * (1 + chance.gauss(0, noise)) for _ in range(steps)] for factor in factors]


def healed(times, slow):
    """Seconds that a job takes less if these ranks are as fast as their factors of 1."""
    return sum(map(max, zip(*times, strict=True))) - sum(
        map(max, zip(*[[one / slow.get(rank, 1) for one in column] for rank, column in enumerate(times)], strict=True))
    )


@each_row(
    ("ranks", "slow"),
    [
        (10, {3: 1.09, 7: 1.09}),
        (10, {0: 4.0, 2: 3.5, 4: 3.0, 6: 2.5, 8: 2.0}),
        (64, {7: 1.3, 20: 1.3, 41: 1.3}),
        (8, {0: 1.5, 1: 1.5, 2: 1.5, 3: 1.5, 4: 1.5, 5: 1.5}),
        (2, {1: 1.3}),
    ],
)
def test_the_set_of_slow_ranks_is_named_with_the_seconds_that_it_costs(ranks, slow):
    times = noisy([slow.get(rank, 1.0) for rank in range(ranks)])
    stragglers = searched(a_job(times))
    (loss,) = stragglers.costliest(8)
    assert (loss.ranks or (loss.rank,)) == tuple(sorted(slow))
    assert loss.seconds_lost == pytest.approx(healed(times, slow), rel=0.1)
    (sick,) = stragglers.slow
    assert sick.ranks == loss.ranks
    assert slow[loss.rank] == max(slow.values())


def test_a_rank_that_adds_little_to_the_loss_is_left_out_of_the_set():
    stragglers = searched(a_job(noisy([2.0, 1.07, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])))
    assert [loss.ranks or (loss.rank,) for loss in stragglers.costliest(8)] == [(0,)]


@each_row("seed", range(3))
def test_a_slow_node_near_the_limit_is_a_single_set(seed):
    """Now and then, one of its ranks is not slow enough."""
    node = dict.fromkeys(range(4, 8), 1.06)
    stragglers = searched(a_job(noisy([node.get(rank, 1.0) for rank in range(16)], steps=400, seed=seed)))
    (loss,) = stragglers.costliest(8)
    assert loss.ranks == (4, 5, 6, 7)
    assert loss.seconds_lost == pytest.approx(sum(stragglers.causes.values()))
    assert loss.steps <= stragglers.steps


def test_a_rank_that_costs_more_than_a_set_stays_apart():
    times = noisy([1.5, *[1.0] * 9], steps=600)
    times[1][:100] = [seconds * 1.5 for seconds in times[1][:100]]
    assert [loss.ranks or (loss.rank,) for loss in searched(a_job(times)).costliest(8)] == [(0,), (0, 1)]


def test_a_slow_rank_that_no_rank_waits_for_is_not_named():
    times = noisy([1.0] * 4 + [2.0] * 4)
    times[1] = [1.3 * seconds for seconds in times[1]]
    stragglers = searched(a_job(times), roles=ROLES)
    assert stragglers.costliest(8) == []
    assert stragglers.uneven_stages_seconds > 0.2 * stragglers.seconds


def test_a_set_keeps_its_ranks_while_they_are_a_little_slow():
    times = noisy([1.0] * 8, steps=300, noise=0.01)
    for rank, factors in {2: (1.2, 1.2, 1.2, 1.2, 1.2, 1.2), 5: (1.2, 1.2, 1.2, 1.04, 1.2, 1.2)}.items():
        times[rank] = [seconds * factors[step // 50] for step, seconds in enumerate(times[rank])]
    assert [loss.ranks for loss in searched(a_job(times)).costliest(8)] == [(2, 5)]


def test_a_set_that_is_slow_within_windows_loses_all_of_its_slow_steps():
    slow = [(step, rank, "data", 0.2) for rank in (1, 6) for step in range(32, 169)]
    plain, hit, stragglers = 0.0, 0.0, Stragglers()
    for _, signals in traces.windows(8, 250, seed=5):
        plain += sum(signals[0][STEP])
    for first, signals in traces.windows(8, 250, seed=5, faults=slow):
        hit += sum(signals[0][STEP])
        stragglers.window(range(first, first + 50), signals)
    (loss,) = stragglers.costliest(8)
    assert (loss.ranks, loss.cause, loss.steps) == ((1, 6), "data", 137)
    assert loss.seconds_lost == pytest.approx(hit - plain, rel=0.1)


def test_a_collection_of_a_slow_rank_is_a_loss_of_its_own():
    faults = [(step, rank, "data", 0.2) for rank in (1, 2) for step in range(1, 151)]
    windows = [*traces.windows(4, 150, seed=5, faults=faults)]
    for rank in range(4):
        for name in (GC, LOCAL):
            windows[1][1][rank][name][9] += 0.7 * (rank == 1)
        windows[1][1][rank][STEP][9] += 0.7
    stragglers = Stragglers()
    rows = [row for first, signals in windows for row in stragglers.window(range(first, first + 50), signals)]
    assert [(row.step, row.rank) for row in rows if row.cause == "gc"] == [(60, 1)]
    assert stragglers.causes["gc"] == pytest.approx(0.7, rel=0.1)
    assert stragglers.causes["data"] == pytest.approx(0.2 * 150, rel=0.1)


def test_uneven_batches_cost_as_much_as_even_batches_would_save():
    chance = random.Random(3)
    sizes = [[chance.lognormvariate(0, 0.4) for _ in range(200)] for _ in range(8)]
    times = [[0.3 + 0.7 * size + chance.gauss(0, 0.005) for size in column] for column in sizes]
    stragglers = searched(a_job(times, sizes))
    even = sum([0.3 + 0.7 * sum(row) / 8 for row in zip(*sizes, strict=True)])
    assert stragglers.costliest(8) == []
    assert stragglers.uneven_batches_seconds == pytest.approx(stragglers.seconds - even, rel=0.03)
    assert stragglers.uneven_stages_seconds == 0
    assert stragglers.slowdown == pytest.approx(stragglers.seconds / even, rel=0.01)


def test_a_slow_rank_is_named_among_uneven_batches():
    chance = random.Random(3)
    sizes = [[chance.lognormvariate(0, 0.3) for _ in range(200)] for _ in range(8)]
    times = [[(1.4 if rank == 5 else 1.0) * size for size in column] for rank, column in enumerate(sizes)]
    stragglers = searched(a_job(times, sizes))
    assert {loss.ranks or loss.rank for loss in stragglers.costliest(8)} == {5}
    assert stragglers.uneven_batches_seconds > 0.2 * stragglers.seconds


def test_sizes_that_explain_no_times_cost_nothing():
    chance = random.Random(3)
    sizes = [[chance.lognormvariate(0, 0.4) for _ in range(200)] for _ in range(8)]
    assert searched(a_job(noisy([1.0] * 8), sizes)).uneven_batches_seconds == 0


def test_batches_are_uneven_if_all_stages_of_a_replica_deviate_together():
    chance = random.Random(3)
    shares = [[chance.lognormvariate(0, 0.2) for _ in range(200)] for _ in range(4)]
    times = [[share * (1 + chance.gauss(0, 0.01)) for share in shares[rank % 4]] for rank in range(16)]
    stragglers = searched(a_job(times), roles=ROLES)
    assert stragglers.costliest(8) == []
    assert stragglers.uneven_batches_seconds > 0.15 * stragglers.seconds
    assert stragglers.uneven_stages_seconds == 0
    alone = searched(a_job(noisy([1.0] * 16, noise=0.1)), roles=ROLES)
    assert alone.uneven_batches_seconds == 0


@each_row("ranks", [1, 4])
def test_a_longer_last_stage_is_uneven_and_no_rank_is_to_blame(ranks):
    roles = {rank: {"pp": rank // ranks, "dp": rank % ranks} for rank in range(4 * ranks)}
    stragglers = searched(a_job(noisy([1.0] * 3 * ranks + [1.4] * ranks, noise=0.01)), roles=roles)
    assert stragglers.costliest(8) == []
    assert stragglers.uneven_stages_seconds == pytest.approx(0.3 * 200, rel=0.1)
    assert stragglers.uneven_batches_seconds == 0
    assert searched(a_job(noisy([1.0] * 12 + [1.03] * 4, noise=0.01)), roles=ROLES).uneven_stages_seconds == 0


@each_row("noise", [0.02, 0.1])
@each_row("ranks", [2, 4, 16, 64])
def test_chance_names_no_rank_and_is_told_as_chance(ranks, noise):
    times = noisy([1.0] * ranks, steps=300, noise=noise, seed=ranks)
    stragglers = searched(a_job(times))
    mean = sum([sum(row) / ranks for row in zip(*times, strict=True)])
    assert stragglers.costliest(8) == []
    assert stragglers.chance_seconds == pytest.approx(stragglers.seconds - mean)
    assert stragglers.uneven_batches_seconds == stragglers.uneven_stages_seconds == 0


@each_row("slow", [3, 512])
def test_sets_of_many_ranks_are_found_in_short_slices(slow):
    times = noisy([1.4] * slow + [1.0] * (1024 - slow), steps=30)
    signals, rests, stragglers = a_job(times), [], Stragglers()
    for first in (1, 31):
        stragglers.window(range(first, first + 30), signals, yield_gil=lambda: rests.append(None))
    assert [len(loss.ranks) for loss in stragglers.costliest(8)] == [slow]
    assert len(rests) > 2 * (30 + 1024 // 128)
