"""Readers of gathered windows: rank 0 compares the steps of ranks, each window once, whatever an earlier one raised."""

import weakref
from array import array

import pytest
import torch.distributed as dist
from jobs.exchanges import LENGTH, ExchangeJob, Windows

from perf_callbacks.kernel.records.codec import pack
from perf_callbacks.ranks import rounds
from perf_callbacks.stragglers.search import Stragglers


@pytest.fixture
def job():
    job = ExchangeJob()
    job.step()
    return job


COLUMN = array("f", [0.5] * LENGTH)


def test_each_window_is_analysed_once_with_the_parts_of_the_ranks(job):
    reader, elsewhere = Windows(job.ranks[0]), Windows(job.ranks[1])
    job.ranks[2].role = {"data": 1, "tensor": 0}
    for window in range(2):
        job.offer(window, signals={"gc": COLUMN})
        for _ in range(3):
            job.step()
    assert [(window.first_step, window.steps) for window in reader.all] == [(1, LENGTH), (LENGTH + 1, LENGTH)]
    assert reader.all[1].signals == {rank: {"gc": COLUMN} for rank in range(3)}
    assert reader.all[1].roles == {2: {"data": 1, "tensor": 0}}
    assert elsewhere.all == []


def test_an_error_in_the_reader_ends_its_reading_and_nothing_else(job, caplog):
    def fail(window):
        raise ZeroDivisionError("division by zero")

    failing = Windows(job.ranks[0], fail)
    for window in range(3):
        job.through(window)
    assert len(failing.all) == 1
    assert job.latest == [job.whole(2)] * 3
    sentence = "perf_callbacks: the windows of the ranks are no longer compared, training goes on: "
    assert caplog.messages == [sentence + "ZeroDivisionError: division by zero"]


def test_a_reader_is_not_kept_alive(job):
    reader = Windows(job.ranks[0])
    job.through(0)
    assert len(reader.all) == 1
    gone = weakref.ref(reader)
    del reader
    assert gone() is None
    job.through(1)
    assert job.latest == [job.whole(1)] * 3


def test_a_window_is_announced_before_it_is_analysed(job):
    seen = []
    store = dist.PrefixStore("perf_callbacks", job.store)
    reader = Windows(job.ranks[0], lambda _: seen.append(store.get("window").decode()))
    job.through(0)
    assert pack(job.whole(0)) in seen[0]
    assert len(reader.all) == 1


def test_ranks_that_counted_different_steps_are_analysed_but_have_no_window(job):
    reader = Windows(job.ranks[0])
    job.offer(0, 0, 1)
    job.offer(0, 2, steps=3)
    job.step()
    job.step()
    assert [sorted(window.signals) for window in reader.all] == [[0, 1, 2]]
    assert job.latest == [None] * 3
    job.through(1)
    assert job.latest == [job.whole(1)] * 3


def test_a_window_without_a_rank_missing_at_the_deadline_is_told_once(job, caplog):
    reader = Windows(job.ranks[0])
    for window in range(3):
        job.offer(window, 0, 2)
        job.step(0, 2)
        assert len(reader.all) == window
        job.now += rounds.DEADLINE_SECONDS
        job.step(0, 2)
    assert job.ranks[0].take() == [job.lacking(window, 1) for window in range(3)]
    assert [sorted(window.signals) for window in reader.all] == [[0, 2]] * 3
    assert job.latest == [job.lacking(2, 1), None, job.lacking(2, 1)]
    (message,) = caplog.messages
    assert message == (
        "perf_callbacks: no message came from 1 of 3 ranks for steps 1 to 50 (rank 1). "
        "Rates of the job are left out while ranks are missing."
    )
    job.through(3)
    assert job.latest == [job.whole(3)] * 3


def test_a_rank_that_is_heard_of_alone_is_compared_with_no_other(job):
    reader = Windows(job.ranks[0])
    job.offer(0, 0, signals={"local": COLUMN})
    job.step(0)
    job.now += rounds.DEADLINE_SECONDS
    job.step(0)
    assert [sorted(window.signals) for window in reader.all] == [[]]
    assert Stragglers().window(range(1, LENGTH + 1), reader.all[0].signals) == []
