"""Stragglers: rank, step, cause and loss, on synthetic signals."""

import math
import random
from array import array

import pytest
import traces
from rows import each_row

from perf_callbacks.kernel.records.rank_records import Straggler
from perf_callbacks.stragglers.peers import LOCAL
from perf_callbacks.stragglers.search import Stragglers


def searched(windows, stragglers=None):
    """The stragglers in the windows, and the search."""
    stragglers = stragglers if stragglers is not None else Stragglers()
    rows = []
    for first, signals in windows:
        steps = len(next(iter(signals.values()))[LOCAL])
        rows += stragglers.window(range(first, first + steps), signals)
    return rows, stragglers


def named(rows):
    """Step, rank and cause of each."""
    return [(row.step, row.rank, row.cause) for row in rows]


def random_faults(seed, ranks, steps, number):
    chance = random.Random(seed)
    places = chance.sample(range(2, steps), number)
    return [
        (step, chance.randrange(ranks), chance.choice(["gc", "data", "steal", "host"]), 0.4 + 2 * chance.random())
        for step in places
    ]


@each_row(("ranks", "noise"), [(1, 0.03), (2, 0.01), (4, 0.03), (64, 0.03)])
def test_every_fault_is_named_with_its_step_rank_and_cause(ranks, noise):
    faults = random_faults(7, ranks, 500, 12)
    rows, stragglers = searched(traces.windows(ranks, 500, seed=ranks, noise=noise, faults=faults))
    assert {*named(rows)} == {fault[:3] for fault in faults}
    assert sum(stragglers.causes.values()) == pytest.approx(sum(fault[3] for fault in faults), rel=0.1)
    assert (stragglers.slowdown is not None and stragglers.slowdown > 1) == (ranks > 1)


@each_row(("ranks", "ragged"), [(1, 0.5), (2, 0.0), (4, 0.2), (32, 0.5)])
def test_quiet_ranks_are_never_named(ranks, ragged):
    rows, stragglers = searched(traces.windows(ranks, 500, seed=3, noise=0.03, tail=0.05, ragged=ragged))
    assert rows == []
    assert stragglers.slow == []
    assert stragglers.causes == {}


@each_row("cause", ["data", "steal", "host"])
def test_a_rank_that_is_slow_for_long_is_named_with_causes_and_loss(cause):
    rows, stragglers = searched(traces.windows(4, 300, seed=5, slow=(2, cause, 0.12)))
    assert {row.rank for row in rows} == {2}
    (slow,) = stragglers.slow
    assert slow.rank == 2
    assert slow.steps == 300
    assert slow.share == pytest.approx(0.12 / 1.17, rel=0.1)
    assert next(iter(slow.causes)) == cause
    assert slow.causes[cause] > 0.9
    assert stragglers.causes[cause] == pytest.approx(0.12 * 300, rel=0.15)


def test_a_slow_rank_is_named_from_the_second_window_until_it_recovers():
    stragglers = Stragglers()
    slow = traces.windows(4, 100, seed=5, slow=(1, "host", 0.2))
    windows = [stragglers.window(range(first, first + 50), signals) for first, signals in slow]
    assert [len(rows) > 0 for rows in windows] == [False, True]
    assert [slow.rank for slow in stragglers.slow] == [1]
    searched(traces.windows(4, 50, seed=6), stragglers)
    assert stragglers.slow == []


def test_steps_of_a_slow_rank_around_its_first_and_last_window_count():
    slow = [(step, 1, "host", 0.2) for step in range(32, 169)]
    rows, stragglers = searched(traces.windows(4, 250, seed=5, faults=slow))
    assert [(row.step, row.steps) for row in rows if row.cause == "host"] == [(100, 69), (150, 50), (168, 18)]
    assert stragglers.causes["host"] == pytest.approx(0.2 * len(slow), rel=0.05)
    assert stragglers.slow == []


def test_a_rank_slow_in_half_of_a_window_is_judged_by_its_usual_steps():
    slow = [(step, 1, "data", 0.8) for step in range(206, 231)]
    rows, _ = searched(traces.windows(2, 250, seed=5, faults=slow))
    assert [row.step for row in rows] == [*range(206, 231)]
    assert [row.seconds_lost for row in rows] == pytest.approx([0.8] * 25, rel=0.1)


def test_ranks_are_compared_only_with_ranks_that_do_the_same_work():
    pipeline = {rank: {"pipeline": rank // 2, "data": rank % 2} for rank in range(4)}
    (first, signals), *_ = traces.windows(4, 50, faults=[(9, 3, "gc", 0.6)])
    for rank in (2, 3):
        signals[rank][LOCAL] = array("f", [seconds + 3 for seconds in signals[rank][LOCAL]])
    stragglers = Stragglers()
    assert named(stragglers.window(range(first, first + 50), signals, pipeline)) == [(9, 3, "gc")]
    assert stragglers.slow == []


LEARNER, ACTOR, PAIRED = 0b0111, 0b0101, 0b1111
"""Kinds of work: with a backward, without one, and with transfers between two ranks."""

SLOW = [(9, 3, "gc", 0.6)]


@each_row(
    ("roles", "slow", "others"),
    [
        ([{"kind": LEARNER}] * 4, [(9, 3)], 0),  # alike
        ([{"kind": ACTOR}, *[{"kind": LEARNER}] * 3], [(9, 3)], 1),  # an actor
        ([*[{"kind": LEARNER}] * 3, {"kind": ACTOR}], [], 1),  # the slow rank is alone
        ([{"kind": kind << 4 | LEARNER} for kind in (1, 1, 2, 3)], [], 2),  # sizes
        ([{"kind": PAIRED}] * 4, [], 4),  # pairs
        ([{"kind": PAIRED, "pp": 0}, {"kind": LEARNER, "pp": 0}] * 2, [(9, 3)], 0),  # pairs in a pipeline
        ([{"kind": PAIRED, "cp": rank} for rank in range(4)], [(9, 3)], 0),  # pairs on a mesh
        ([{"kind": PAIRED, "dp": rank} for rank in range(4)], [], 4),  # pairs of data-parallel ranks
        ([{}] * 4, [(9, 3)], 0),  # unknown
    ],
)
def test_only_ranks_of_the_same_kind_of_work_are_compared(roles, slow, others):
    stragglers = Stragglers()
    ((first, signals),) = traces.windows(4, 50, faults=SLOW)
    rows = stragglers.window(range(first, first + 50), signals, dict(enumerate(roles)))
    assert [(row.step, row.rank) for row in rows] == slow
    assert stragglers.other_work == others


def unlike(signals, ranks):
    """The same signals; those of some ranks end before the backward, and don't tell of the wait for a CPU."""
    return {
        rank: {
            name: array("f", [seconds - (0.5 if name == LOCAL else 0.0) for seconds in column])
            for name, column in columns.items()
            if name != "steal" or rank not in ranks
        }
        if rank in ranks
        else columns
        for rank, columns in signals.items()
    }


def test_only_local_times_of_the_same_sort_are_compared():
    windows = traces.windows(4, 150, faults=[(9, 3, "gc", 0.6), (60, 0, "data", 0.7)])
    rows, stragglers = searched([(first, unlike(signals, {2, 3})) for first, signals in windows])
    assert named(rows) == [(9, 3, "gc"), (60, 0, "data")]
    assert stragglers.slow == []
    assert stragglers.steps == 150


def test_a_rank_alone_with_its_sort_of_local_time_is_compared_with_none():
    rows, stragglers = searched([(first, unlike(signals, {1})) for first, signals in traces.windows(2, 150)])
    assert (rows, stragglers.steps, stragglers.slowdown) == ([], 0, None)
    faults = [(9, 0, "gc", 0.6), (20, 2, "gc", 0.6)]
    rows, stragglers = searched(
        [(first, unlike(signals, {2})) for first, signals in traces.windows(3, 50, faults=faults)]
    )
    assert named(rows) == [(9, 0, "gc")]


def test_a_rank_that_was_slow_before_windows_without_it_is_forgotten():
    windows = traces.windows(4, 150, seed=5, slow=(1, "host", 0.2))
    stragglers, rows = Stragglers(), []
    for first, signals in windows:
        heard = unlike(signals, {0, 1, 2, 3}) if first == 51 else signals
        rows += stragglers.window(range(first, first + 50), heard)
    assert (rows, stragglers.slow) == ([], [])


@each_row(
    ("seconds", "rank", "lost"),
    [
        ([0.5, 0.5, 0.5, 0.5], None, 0.0),  # all ranks at once
        ([1.0, 1.12, 1.24, 1.36], None, 0.0),  # nearly equal on all
        ([0.5, 0.7, 0.9, 1.1], 3, 0.4),  # the longest beyond a usual one
        ([0.8, 0.0, 0.6, 0.0], 0, 0.8),  # two ranks cost what the slower of them costs
    ],
)
def test_collections_in_the_same_step_cost_the_longest_beyond_usual(seconds, rank, lost):
    faults = [(20, place, "gc", pause) for place, pause in enumerate(seconds) if pause]
    rows, stragglers = searched(traces.windows(4, 50, faults=faults))
    assert named(rows) == ([] if rank is None else [(20, rank, "gc")])
    assert stragglers.causes.get("gc", 0.0) == pytest.approx(lost, rel=0.1)


def test_unknown_seconds_and_ranks_that_are_silent_are_left_out():
    ((first, signals),), stragglers = traces.windows(4, 50, faults=[(9, 1, "data", 0.8)]), Stragglers()
    signals[0][LOCAL][30] = math.nan
    signals[2]["steal"][8] = math.nan
    signals[3] = {}
    rows = stragglers.window(range(first, first + 50), signals)
    assert rows == [Straggler(step=9, rank=1, cause="data", seconds_lost=pytest.approx(0.8, rel=0.1))]
    assert stragglers.window(range(51, 101), {}) == []
    assert stragglers.window(range(51, 101), {0: {}, 1: {LOCAL: array("f", [1.0])}}) == []
    unknown = {rank: {LOCAL: array("f", [math.nan] * 50)} for rank in range(2)}
    assert stragglers.window(range(51, 101), unknown) == []


def test_a_hundredth_of_a_thousand_ranks_may_be_silent():
    faults = [(5, 77, "gc", 0.7), (12, 900, "host", 0.9)]
    (first, signals), *_ = traces.windows(1000, 20, faults=faults, length=20)
    heard = {rank: signals[rank] for rank in signals if rank % 100 != 5}
    rests = []
    stragglers = Stragglers()
    rows = stragglers.window(range(first, first + 20), heard, yield_gil=lambda: rests.append(None))
    assert named(rows) == [(5, 77, "gc"), (12, 900, "host")]
    assert len(rests) > 20
