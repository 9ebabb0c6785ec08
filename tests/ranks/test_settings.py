"""Settings that rank 0 announces: each rank takes them over, and takes none of another fit for them."""

import itertools

import pytest
import torch
import torch.distributed as dist
from jobs.exchanges import LENGTH, ExchangeJob, Windows
from rows import each_row

from perf_callbacks.kernel.engine.windows import JobSettings
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.ranks import exchange as ranks, store as board


@pytest.fixture
def job():
    job = ExchangeJob()
    job.step()
    return job


def windows_of(job):
    return [exchange.window for exchange in job.ranks]


def test_every_rank_takes_over_the_settings_of_rank_0():
    windows, switches = {1: None, 2: 7}, {1: False, 2: False}
    job = ExchangeJob(windows=windows, switches=switches, directory="/out/“1”")
    settings = job.ranks[0].job_settings
    expected = JobSettings(fit=settings.fit, run_id=job.run_id, window=LENGTH, directory="/out/“1”", signals=True)
    assert settings == expected
    assert windows_of(job) == [LENGTH, None, None]
    job.step()
    assert [exchange.agree(0) for exchange in job.ranks] == [expected] * 3
    assert [(exchange.window, exchange.signals) for exchange in job.ranks] == [(LENGTH, True)] * 3
    job.through(0)
    assert job.latest == [job.whole(0)] * 3
    assert len({ExchangeJob().ranks[0].job_settings.fit for _ in range(10)}) == 10


def test_without_the_search_for_slow_ranks_parts_carry_no_signals():
    job = ExchangeJob(switches={0: False})
    job.step()
    assert [exchange.signals for exchange in job.ranks] == [False] * 3


def test_rank_0_may_say_that_nothing_is_exchanged():
    job = ExchangeJob(windows={0: None})
    assert job.step()[0] is None
    assert windows_of(job) == [None] * 3
    assert {exchange.agree(5).run_id for exchange in job.ranks} == {job.run_id}
    job.through(0)
    assert job.latest == [None] * 3
    assert dist.PrefixStore("perf_callbacks", job.store).check(["part0 1"]) is False


@each_row(
    ("changes", "window", "signals"),
    [
        ({}, 50, True),
        ({"stragglers": "off"}, 50, False),
        ({"exchange": "off"}, None, False),
        ({"exchange": "off", "stragglers": "on"}, None, False),
    ],
)
def test_exchange_and_search_are_switched_apart(tmp_path, monkeypatch, changes, window, signals):
    monkeypatch.setattr(board, "default_store", dist.HashStore)
    place = FitLocation(integration="loop", directory=tmp_path, device=torch.device("cpu"), world_size=2)
    exchange = ranks.meet(place, PerfConfig(**changes))
    assert (exchange.window, exchange.signals) == (window, signals)
    exchange.close()


def test_settings_are_looked_for_often_at_first_and_then_seldom():
    job = ExchangeJob()
    pauses, began = [], job.now
    while job.now < began + 1000:
        pauses += job.step(1)
        job.now += pauses[-1]
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.01
    assert pauses[-1] == 30.0
    waits = list(itertools.accumulate(pauses))
    assert sum([wait <= 5 for wait in waits]) < 50
    assert max(pause for pause, wait in zip(pauses, waits, strict=True) if wait <= 5) < 0.6


def test_settings_that_come_late_are_obeyed():
    job = ExchangeJob()
    job.step(1)
    job.now += 20
    job.step(0)
    assert job.ranks[1].window is None
    job.step(1, 2)
    job.through(4)
    assert job.latest == [job.whole(4)] * 3


def test_settings_of_an_earlier_fit_are_not_taken_for_the_current(job):
    later = ExchangeJob(store=job.store)
    later.step(1, 2)
    assert windows_of(later)[1:] == [None, None]
    job.end()
    later.step(1, 2)
    assert windows_of(later)[1:] == [None, None]
    later.through(0)
    assert {exchange.job_settings.run_id for exchange in later.ranks} == {later.run_id} != {job.run_id}
    assert later.latest == [later.whole(0)] * 3


def test_windows_of_an_earlier_fit_are_not_taken_for_the_current(job):
    job.through(0)
    job.offer(1, 1, 2)
    job.step(1, 2)
    job.end()
    later = ExchangeJob(store=job.store)
    later.step()
    later.offer(0, 0, 1)
    later.step(0, 1, 0, 1)
    later.offer(1, 0)
    later.step()
    assert later.latest == [None] * 3
    assert later.ranks[0].take() == []


@pytest.mark.parametrize("ended", [True, False])
def test_a_rank_that_sat_the_first_fit_out_takes_part_in_the_second(ended):
    first = ExchangeJob()
    first.step(0, 1)
    if ended:
        first.end()
    second = ExchangeJob(store=first.store)
    second.step(2)
    assert second.ranks[2].job_settings == (None if ended else first.ranks[0].job_settings)
    second.through(0)
    assert second.latest == [second.whole(0)] * 3
    assert second.ranks[2].job_settings == second.ranks[0].job_settings


def test_an_end_that_comes_late_does_not_take_the_next_settings_away(job):
    later = ExchangeJob(store=job.store)
    later.step(0)
    job.end()
    later.step(1, 2)
    assert windows_of(later) == [LENGTH] * 3


def test_a_fit_within_a_fit_leaves_the_outer_fit_its_windows(job):
    job.through(0)
    inner = ExchangeJob(store=job.store)
    inner.step()
    inner.through(0)
    assert inner.latest == [inner.whole(0)] * 3
    inner.end()
    job.through(1)
    job.through(2)
    assert job.latest == [job.whole(2)] * 3


def test_ranks_that_were_restarted_take_no_part_of_before_for_theirs():
    before = ExchangeJob()
    before.step()
    before.through(0)
    before.offer(1)
    before.step(1, 2)  # killed with a part under way
    after = ExchangeJob(store=before.store, attempt=1)
    reader = Windows(after.ranks[0])
    after.step()
    after.offer(1, 0)
    after.step(0)
    assert reader.all == []
    after.offer(1, 1, 2)
    after.step(1, 2, 0)
    assert sorted(reader.all[0].signals) == [0, 1, 2]
    assert after.latest[0] == after.whole(1)
