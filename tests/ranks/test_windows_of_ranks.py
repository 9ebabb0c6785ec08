"""Windows that ranks share: several ranks in one process, their rounds done by hand."""

import gc
import itertools
import math
from array import array
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from jobs.exchanges import LENGTH, ExchangeJob
from rows import each_row

from perf_callbacks.kernel.engine.windows import NOTICE, Part
from perf_callbacks.ranks import exchange as ranks, leader, rounds, store as board
from perf_callbacks.ranks.bundles import Bundle
from perf_callbacks.ranks.packed_parts import pack_bundle

COLUMN = array("f", [0.5] * LENGTH)


def alive(*types):
    """Count the objects of these types that something in the process holds."""
    gc.collect()
    return sum([type(thing) in types for thing in gc.get_objects()])


@pytest.fixture
def job():
    job = ExchangeJob()
    job.step()
    return job


def test_a_window_of_all_ranks_is_known_to_all_and_handed_out_once(job):
    job.through(0)
    assert job.latest == [job.whole(0)] * 3
    assert [exchange.take() for exchange in job.ranks] == [[job.whole(0)], [], []]
    job.through(1)
    job.through(2)
    assert job.latest == [job.whole(2)] * 3
    assert job.ranks[0].take() == [job.whole(1), job.whole(2)]
    assert job.ranks[0].take() == []
    assert job.step() == [None] * 3  # nobody looks again until there is something to see


def test_a_waiting_rank_looks_ever_less_often_and_rank_0_until_the_deadline(job):
    job.offer(0, 0, 2)
    pauses = {0: [], 2: []}
    for rank, seconds in {2: 200, 0: rounds.DEADLINE_SECONDS}.items():
        began = job.now
        while job.now < began + seconds:
            pauses[rank] += job.step(rank)
            job.now += pauses[rank][-1]
    expected = [0.1, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    assert pauses[2] == pytest.approx([*expected, 6.4, 12.8, 25.6, *[30] * 5])
    assert pauses[0] == pytest.approx([*expected, 10 - sum(expected)])
    assert job.step(0) == [None]


def test_a_rank_that_was_deaf_for_some_windows_catches_up(job):
    for window in range(4):
        job.offer(window, 0, 2)
        job.step(0, 2)
    job.offer(0, 1)
    job.step(1, 0)
    assert job.ranks[0].take() == [job.whole(0)]
    for window in range(1, 4):
        job.offer(window, 1)
    job.step(1, 0)
    assert job.ranks[0].take() == [job.whole(1), job.whole(2), job.whole(3)]
    assert job.step(2, 1) == [None] * 2
    assert job.latest == [job.whole(3)] * 3


def test_windows_too_far_behind_are_given_up(job):
    for window in range(20):
        job.offer(window, 0, 2)
        job.step(0, 2)
    for window in range(20):
        job.offer(window, 1)
        job.step(1)
    assert job.ranks[0].take() == [job.lacking(window, 1) for window in range(12)]
    job.step(0)
    assert job.ranks[0].take() == [job.whole(window) for window in range(12, 20)]


def test_parts_of_windows_of_another_length_are_not_sent(job):
    job.offer(0, length=7)
    job.through(0)
    job.offer(1, length=7)
    job.step()
    assert job.latest == [job.whole(0)] * 3


def test_a_rank_can_not_speak_for_another(job):
    fit = rounds.mark(job.ranks[0].job_settings.fit)
    parts = [job.part(0, 1, samples=10**9), job.part(0, 2)]
    job.offer(0, 0, 1)
    job.step(1)
    dist.PrefixStore("perf_callbacks", job.store).set(
        "part0 2", b"".join([pack_bundle(Bundle.from_part(part), fit) for part in parts])
    )
    job.step()
    assert job.latest == [job.whole(0), job.whole(0), None]


def test_useful_tokens_that_are_on_their_way_arrive_as_numbers(job):
    offered = [torch.tensor(3), torch.tensor(4), 5]
    for rank, useful in enumerate(offered):
        job.offer(0, rank, useful_tokens=useful)
    for rank in range(3):
        job.offer(1, rank, useful_tokens=torch.tensor([1, 2]) if rank == 1 else 3)
    job.step()
    job.step()
    windows = job.ranks[0].take()
    assert [window.useful_tokens for window in windows] == [12, None]
    assert type(windows[0].useful_tokens) is int


@each_row("amount", [2**63, 2**200, -1, math.inf, math.nan])
def test_useful_tokens_that_can_not_be_true_are_unknown(amount):
    job = ExchangeJob()
    job.step()
    job.offer(0, 0, 2)
    job.offer(0, 1, useful_tokens=amount)
    job.step()
    job.step()
    assert job.failures == [None] * 3
    (window,) = job.ranks[0].take()
    assert window.useful_tokens == (2**63 + 14 if amount == 2**63 else None)
    assert window.samples == job.whole(0).samples


def test_no_memory_grows_with_the_number_of_windows_or_fits(job):
    store, before = job.store, alive(Part, Bundle)
    for fit in range(5):
        current = job if fit == 0 else ExchangeJob(store=store)
        current.step()
        for window in range(200):
            missing = [rank for rank in range(3) if not (rank and window % 5 == rank)]
            current.offer(window, *missing)
            current.step()
        current.step()
        assert alive(Part, Bundle) <= before + 3 * rounds.KEPT
        assert 0 < len(current.ranks[0].take()) <= rounds.FINISHED
        current.end()
    assert store.num_keys() == 2 + 2 * rounds.KEPT
    keys = ["verdict", "window", *[f"part{slot} {rank}" for slot in range(rounds.KEPT) for rank in (1, 2)]]
    assert sum(len(dist.PrefixStore("perf_callbacks", store).get(key)) for key in keys) < 5000


def test_windows_offered_while_the_store_does_not_answer_are_bounded(monkeypatch):
    calls, make = [], ranks.queue.SimpleQueue
    monkeypatch.setattr(ranks.queue, "SimpleQueue", lambda: calls.append(make()) or calls[-1])
    job, before = ExchangeJob(), alive(Part)
    for window in range(1000):
        job.offer(window)
    assert alive(Part) == before + 3 * rounds.KEPT
    assert [waiting.qsize() for waiting in calls] == [1] * 3


def test_the_use_of_all_ranks_stands_in_the_window_of_rank_0_alone(job):
    for rank in range(3):
        job.offer(0, rank, resources={"cpu_cores": 1.0 + rank, **({"power_watts": 400.0} if rank else {})})
    for _ in range(3):
        job.step()
    (window,) = job.ranks[0].take()
    assert window.job == {"job_cpu_cores": 6.0}  # the power of rank 0 is unknown
    assert window.by_rank == {"cpu_cores": (1.0, 2.0, 3.0), "power_watts": (None, 400.0, 400.0)}
    assert job.latest == [window, job.whole(0), job.whole(0)]
    job.offer(1, 0, 2, resources={"cpu_cores": 1.0})
    job.now += rounds.DEADLINE_SECONDS
    job.step(0, 2)
    job.now += rounds.DEADLINE_SECONDS
    job.step(0)
    (window,) = job.ranks[0].take()
    assert (window.missing_ranks, window.job) == ((1,), {})
    assert window.by_rank == {"cpu_cores": (1.0, None, 1.0)}


def test_long_steps_move_the_deadline(job):
    job.offer(0, 0, 2, seconds=60.0 * (LENGTH - 1))
    job.step(0, 2)
    job.now += 100
    job.step(0, 2)
    job.offer(0, 1)
    job.step(1, 0)
    assert job.latest[0] == replace(job.whole(0), seconds=60.0 * (LENGTH - 1))


def test_rank_0_that_was_deaf_for_thirty_seconds_misses_no_rank(job):
    job.offer(0)
    job.step(1, 2)
    job.step(0, 0)
    job.offer(1)
    job.step(1, 2)
    job.now += 30
    job.step(0)
    job.step()
    assert job.latest == [job.whole(1)] * 3
    assert job.ranks[0].take() == [job.whole(0), job.whole(1)]


def test_rank_0_stopped_beyond_the_deadline_hears_the_others_soon_after():
    """The store stops with the process that serves it: what the others write is there only after rank 0 has looked."""
    job = ExchangeJob()
    job.step()
    job.offer(0)
    job.step(0)
    job.now += 2 * rounds.DEADLINE_SECONDS
    (pause,) = job.step(0)
    assert job.latest[0] is None
    assert pause == pytest.approx(leader.LATE_SECONDS)
    job.step(1, 2)
    job.now += pause
    job.step(0)
    assert job.latest[0] == job.whole(0)


def test_requests_of_all_ranks_hold_while_a_rank_is_missing(job):
    asks = {"gc_interval": 50, **{f"keep item {item}": 1 for item in range(50)}}
    for window in range(2):
        job.through(window, asks=asks)
    assert [latest.asks for latest in job.latest] == [asks] * 3
    held = job.latest[1].holds
    assert held == dict.fromkeys(asks, (1 + NOTICE) * LENGTH)
    job.offer(2, 0, 2, asks={"gc_interval": 9})
    job.step(0, 2)
    job.now += rounds.DEADLINE_SECONDS
    job.step(0, 2)
    assert (job.latest[2].missing, job.latest[2].asks, job.latest[2].holds) == (1, asks, held)
    job.through(3, asks=asks)
    assert (job.latest[1].missing, job.latest[1].holds) == (0, held)


def test_a_request_in_a_late_window_holds_some_windows_after_the_newest(job):
    for window in range(4):
        job.offer(window, 0, 2, asks={"gc_interval": 50})
        job.step(0, 2)
    job.offer(0, 1, asks={"gc_interval": 50})
    job.step(1, 0)
    assert job.latest[0].last_step == LENGTH
    assert job.latest[0].holds == {"gc_interval": (4 + NOTICE) * LENGTH}


def test_in_a_larger_job_a_rank_hears_of_a_window_with_its_next_part():
    job = ExchangeJob(world_size=rounds.FEW + 1)
    job.step()
    job.through(0)
    assert job.latest == [job.whole(0), *[None] * rounds.FEW]
    assert job.step() == [None] * (rounds.FEW + 1)
    job.through(1)
    assert job.latest == [job.whole(1), *[job.whole(0)] * rounds.FEW]


def test_thousands_of_parts_are_handled_in_slices_with_a_breath_in_between(monkeypatch):
    job = ExchangeJob(world_size=200)
    job.step()
    breaths = []
    clock = itertools.count(step=leader.SLICE_SECONDS / 64)  # so much later at each look
    monkeypatch.setattr(leader, "sleep", breaths.append)
    monkeypatch.setattr(leader, "perf_counter", lambda: next(clock))
    job.offer(0)
    job.step()
    assert job.latest[0] is None  # many are never there at once
    job.now += leader.SOON_OF_MANY
    job.step()
    assert job.latest == [job.whole(0), *[None] * 199]
    # 199 parts are read, 64 in each slice, one breath comes before the figures, and each round ends with one
    assert breaths == [leader.GIL_YIELD_SECONDS] * 6
    job.offer(1)
    job.step()
    assert job.latest == [job.whole(0)] * 200  # with the next part


def test_long_windows_are_read_a_few_parts_at_a_time(monkeypatch):
    monkeypatch.setattr(leader, "MOST_BYTES", 3 * 4 * LENGTH)
    job, asked, get = ExchangeJob(world_size=8), [], board.StoreNotes.get
    monkeypatch.setattr(board.StoreNotes, "get", lambda self, keys: asked.append(len(keys)) or get(self, keys))
    job.step()
    job.offer(0, signals={"gc": COLUMN})
    for _ in range(3):
        job.step()
    assert job.latest[0] == job.whole(0)
    assert asked[:3] == [3, 3, 1]
