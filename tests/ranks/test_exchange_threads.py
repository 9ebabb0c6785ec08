"""Threads of the exchange: they do the rounds, and end with the fit, the store, the exchange or the process."""

import gc
import logging
import os
import socket
import threading

import pytest
import torch.distributed as dist
from jobs import until
from jobs.exchanges import ExchangeJob

from perf_callbacks.kernel.engine.windows import Part
from perf_callbacks.ranks import exchange as ranks, leader


def alive(kind):
    """Count the objects of a type that something in the process holds."""
    gc.collect()
    return sum([type(thing) is kind for thing in gc.get_objects()])


def side_threads():
    return [thread for thread in threading.enumerate() if thread.name == "perf_callbacks ranks"]


def started(job):
    for exchange in job.ranks:
        exchange.start()
    return job


def close(job):
    for exchange in job.ranks:
        exchange.close()
    for thread in side_threads():
        thread.join(60)
    assert side_threads() == []


def test_threads_exchange_windows_and_end(caplog, monkeypatch):
    job = started(ExchangeJob(store=dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)))
    assert {exchange.agree().run_id for exchange in job.ranks} == {job.run_id}
    for window in range(3):
        job.offer(window)
        until(lambda window=window: job.latest == [job.whole(window)] * 3)
    monkeypatch.setattr(ranks, "CLOSE_SECONDS", 60.0)  # a busy machine may take long
    for exchange in job.ranks:
        exchange.close()
        exchange.close()
    assert side_threads() == []
    assert dist.PrefixStore("perf_callbacks", job.store).get("verdict") == b""
    assert caplog.records == []


def test_a_server_that_goes_away_is_told_once_by_each_rank(caplog):
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    job = started(ExchangeJob(store=dist.PrefixStore("default_pg", client)))
    until(lambda: all(exchange.window for exchange in job.ranks))
    del server
    gc.collect()
    with caplog.at_level(logging.INFO):
        for window in range(5):
            job.offer(window)
            until(lambda: all(exchange.failure for exchange in job.ranks))
        close(job)
    assert len(caplog.messages) == 3
    start = "perf_callbacks: ranks stop exchanging, training goes on: DistNetworkError: "
    assert all(message.startswith(start) and "\n" not in message for message in caplog.messages)


def test_a_store_that_rank_0_serves_does_not_end_before_its_last_word(capfd):
    """And it ends then: each rank lets go of the store."""
    job = started(
        ExchangeJob(world_size=2, store=dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    )
    port = job.store.port
    assert all(exchange.agree(20) for exchange in job.ranks)
    job.store = None
    close(job)
    assert capfd.readouterr().err == ""
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


def test_a_rank_waits_for_rank_0_no_longer_than_it_may():
    job = ExchangeJob()
    job.ranks[1].start()
    assert job.ranks[1].agree(0.05) is None
    job.ranks[0].start()
    assert job.ranks[1].agree(20) == job.ranks[0].agree(0)
    close(job)


def test_no_rank_waits_for_settings_once_the_exchange_is_over():
    exchange = ExchangeJob(store=object()).ranks[1]
    exchange.start()
    assert exchange.agree(20) is None
    unstarted = ExchangeJob().ranks[1]
    unstarted.close()
    unstarted.start()
    assert unstarted.agree(20) is None


def test_a_handler_of_logs_may_close_the_exchange_in_its_own_thread():
    job = ExchangeJob(store=object())
    errors, done = [], threading.Event()

    class Closing(logging.Handler):
        def emit(self, _):
            try:
                job.ranks[1].close()
            except RuntimeError as error:
                errors.append(error)
            done.set()

    handler = Closing()
    ranks.log.addHandler(handler)
    try:
        job.ranks[1].start()
        assert done.wait(20)
    finally:
        ranks.log.removeHandler(handler)
        job.end()
    assert errors == []


def test_an_exchange_that_was_forgotten_ends_by_itself():
    before = alive(leader.Leader)
    job = ExchangeJob(world_size=1)
    job.ranks[0].start()
    (thread,) = side_threads()
    job.ranks.clear()
    gc.collect()
    thread.join(60)
    assert (thread.is_alive(), alive(leader.Leader)) == (False, before)


def test_a_thread_that_can_not_be_had_is_told_and_costs_the_exchange_only(monkeypatch, caplog):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    exchange = ExchangeJob().ranks[1]
    exchange.start()
    assert exchange.agree(20) is None
    exchange.offer(ExchangeJob().part(0, 1))
    exchange.close()
    assert caplog.messages == ["perf_callbacks: ranks stop exchanging, training goes on: can't start new thread"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked on this system")
def test_a_forked_child_says_and_waits_for_nothing():
    job = ExchangeJob(world_size=2)
    job.ranks[1].start()
    (thread,), before = side_threads(), alive(Part)
    child = os.fork()
    if child == 0:
        try:
            assert job.ranks[1].agree(20) is None
            job.offer(0)
            job.ranks[1].close()
            ranks.end_at_exit()
            os._exit(alive(Part) - before)
        finally:
            os._exit(99)
    assert os.waitpid(child, 0)[1] == 0
    assert thread.is_alive()
    job.ranks[1].close()
    thread.join(60)
