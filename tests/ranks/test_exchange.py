"""Ranks that tell each other what they did: several in one process, their rounds done by hand."""

import gc
import itertools
import logging
import math
import os
import socket
import sys
import threading
import time
import weakref
from array import array
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from exchange_job import LENGTH, Job, Windows
from rows import each_row

from perf_callbacks.kernel.engine.windows import NOTICE, JobSettings, Part
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.records.codec import pack
from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.ranks import exchange as ranks, leader, rounds, store as board
from perf_callbacks.ranks.bundles import Bundle
from perf_callbacks.ranks.packed_parts import pack_bundle
from perf_callbacks.stragglers.search import Stragglers


def alive(*types):
    """Count the objects of these types that something in the process holds."""
    gc.collect()
    return sum([type(one) in types for one in gc.get_objects()])


def side_threads():
    return [thread for thread in threading.enumerate() if thread.name == "perf_callbacks ranks"]


@pytest.fixture
def job():
    job = Job()
    job.step()
    return job


def test_every_rank_takes_over_window_and_run_from_rank_0():
    job = Job(rank1=None, rank2=7)
    assert [exchange.window for exchange in job.ranks] == [LENGTH, None, None]
    job.step()
    assert [exchange.window for exchange in job.ranks] == [LENGTH] * 3
    assert {exchange.agree(0).run_id for exchange in job.ranks} == {job.run_id}


def test_a_window_of_all_ranks_is_known_to_all_and_handed_out_once(job):
    job.through(0)
    assert job.latest == [job.whole(0)] * 3
    assert [exchange.take() for exchange in job.ranks] == [[job.whole(0)], [], []]
    job.through(1)
    job.through(2)
    assert job.latest == [job.whole(2)] * 3
    assert job.ranks[0].take() == [job.whole(1), job.whole(2)]
    assert job.ranks[0].take() == []


def test_nobody_looks_again_until_there_is_something_to_see(job):
    job.through(0)
    assert job.step() == [None] * 3


def test_a_rank_that_is_missing_keeps_windows_from_becoming_complete(job):
    job.through(0)
    for window in range(1, 5):
        job.offer(window, 0, 2)
        job.step(0, 2, 0, 2)
    assert job.latest == [job.whole(0)] * 3


def test_who_waits_looks_ever_less_often_and_rank_0_until_the_deadline(job):
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


def test_what_is_too_far_behind_is_given_up(job):
    for window in range(20):
        job.offer(window, 0, 2)
        job.step(0, 2)
    for window in range(20):
        job.offer(window, 1)
        job.step(1)
    assert job.ranks[0].take() == [job.lacking(window, 1) for window in range(12)]
    job.step(0)
    assert job.ranks[0].take() == [job.whole(window) for window in range(12, 20)]


def test_ranks_that_included_different_steps_have_no_window_and_go_on(job):
    job.offer(0, 0, 1)
    job.offer(0, 2, steps=3)
    job.step()
    job.step()
    assert job.latest == [None] * 3
    job.through(1)
    assert job.latest == [job.whole(1)] * 3


def test_the_verdict_is_looked_for_often_at_first_and_then_seldom():
    job = Job()
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


def test_a_verdict_that_comes_late_is_obeyed():
    job = Job()
    job.step(1)
    job.now += 20
    job.step(0)
    assert job.ranks[1].window is None
    job.step(1, 2)
    job.through(4)
    assert job.latest == [job.whole(4)] * 3


def test_a_rank_that_joins_late_is_waited_for():
    job = Job()
    for window in range(10):
        job.offer(window, 0, 1)
        job.step(0, 1)
    assert job.ranks[0].take() == [job.lacking(window, 2) for window in range(2)]
    job.through(10)
    assert job.latest == [job.whole(10)] * 3


def test_rank_0_may_say_that_nothing_is_exchanged():
    job = Job(rank0=None)
    assert job.step()[0] is None
    assert [exchange.window for exchange in job.ranks] == [None] * 3
    assert {exchange.agree(5).run_id for exchange in job.ranks} == {job.run_id}
    job.through(0)
    assert job.latest == [None] * 3
    assert dist.PrefixStore("perf_callbacks", job.store).check(["part0 1"]) is False


def test_parts_of_windows_of_another_length_are_not_sent(job):
    job.offer(0, length=7)
    job.through(0)
    job.offer(1, length=7)
    job.step()
    assert job.latest == [job.whole(0)] * 3


def test_the_verdict_of_an_earlier_fit_is_not_taken_for_the_current_one(job):
    store = job.store
    later = Job(store=store, rank0=LENGTH)
    later.step(1, 2)
    assert [exchange.window for exchange in later.ranks[1:]] == [None, None]
    job.end()
    later.step(1, 2)
    assert [exchange.window for exchange in later.ranks[1:]] == [None, None]
    later.through(0)
    assert {exchange.job_settings.run_id for exchange in later.ranks} == {later.run_id} != {job.run_id}
    assert later.latest == [later.whole(0)] * 3


def test_what_an_earlier_fit_left_is_not_taken_for_the_current_one(job):
    job.through(0)
    job.offer(1, 1, 2)
    job.step(1, 2)
    job.end()
    later = Job(store=job.store)
    later.step()
    later.offer(0, 0, 1)
    later.step(0, 1, 0, 1)
    later.offer(1, 0)
    later.step()
    assert later.latest == [None] * 3
    assert later.ranks[0].take() == []


@pytest.mark.parametrize("ended", [True, False])
def test_a_rank_that_sat_the_first_fit_out_takes_part_in_the_second(ended):
    first = Job()
    first.step(0, 1)
    if ended:
        first.end()
    second = Job(store=first.store)
    second.step(2)
    assert second.ranks[2].job_settings == (None if ended else first.ranks[0].job_settings)
    second.through(0)
    assert second.latest == [second.whole(0)] * 3
    assert second.ranks[2].job_settings == second.ranks[0].job_settings


def test_an_end_that_comes_late_does_not_take_the_next_verdict_away(job):
    later = Job(store=job.store)
    later.step(0)
    job.end()
    later.step(1, 2)
    assert [exchange.window for exchange in later.ranks] == [LENGTH] * 3


def test_a_fit_within_a_fit_leaves_the_outer_one_its_windows(job):
    job.through(0)
    inner = Job(store=job.store)
    inner.step()
    inner.through(0)
    assert inner.latest == [inner.whole(0)] * 3
    inner.end()
    job.through(1)
    job.through(2)
    assert job.latest == [job.whole(2)] * 3


@each_row("garbage", ["", "{}", "\n", "null", "\x00", "[" * 100_000, "9" * 20_000, "half"])
@each_row("key", ["verdict", "window", "part0 2", "part1 1", "part1 2"])
def test_whatever_is_left_in_the_store_is_no_error(key, garbage):
    job = Job()
    job.step()
    store = dist.PrefixStore("perf_callbacks", job.store)
    job.through(0)
    if garbage == "half":
        garbage = store.get(key)[:-4] if store.check([key]) else "half"
    store.set(key, garbage)
    job.offer(1)
    job.step(1, 2)
    store.set(key, garbage)
    job.step()
    job.through(2)
    assert [exchange.failure for exchange in job.ranks] == [None] * 3
    assert job.latest == [job.whole(2)] * 3


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


class FailingStore:
    """A store whose n-th call fails, and all after it."""

    def __init__(self, store, calls):
        self._store = store
        self.calls = calls

    def __getattr__(self, name):
        def call(*args):
            self.calls -= 1
            if self.calls < 0:
                raise dist.DistNetworkError("Connection reset by peer\nframe #0: c10::Error")
            return getattr(self._store, name)(*args)

        return call


def test_rank_0_stopped_beyond_the_deadline_hears_the_others_soon_after():
    """The store stops with the process that serves it: what the others write is there only after rank 0 has looked."""
    job = Job()
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


@pytest.fixture
def failing(monkeypatch):
    """Rank `which` of a job has a store that fails at its n-th call."""

    def make(which, calls):
        job = Job()
        stores = {}
        connection = board.StoreNotes.__init__

        def connect(self, store):
            connection(self, store)
            if store is job.store and len(stores) == which:
                self._store = FailingStore(self._store, calls)
            stores[len(stores)] = self._store

        monkeypatch.setattr(board.StoreNotes, "__init__", connect)
        return job, stores

    return make


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("calls", range(14))
def test_a_store_that_fails_ends_the_exchange_and_nothing_else(failing, which, calls):
    job, stores = failing(which, calls)
    job.step()
    for window in range(3):
        job.through(window)
    assert stores[which].calls < 0
    other = 1 - which
    assert job.ranks[which].failure == "DistNetworkError: Connection reset by peer"
    assert job.ranks[other].failure is None
    latest = job.latest
    job.through(3)
    if which == 0:
        assert job.latest == latest
    else:
        for seconds in (rounds.DEADLINE_SECONDS, leader.LATE_SECONDS):
            job.now += seconds
            job.step(0)
        assert job.latest[:2] == [job.lacking(3, 1), latest[1]]
    assert job.step(which) == [None]
    before = stores[which].calls
    job.end()
    assert stores[which].calls == before


def test_a_store_that_nobody_can_connect_to_ends_the_exchange():
    job = Job(store=object())
    assert job.step() == [None] * 3
    assert all(exchange.failure.startswith("TypeError: ") for exchange in job.ranks)


def test_nothing_grows_with_the_number_of_windows_or_fits(job):
    store, before = job.store, alive(Part, Bundle)
    for fit in range(5):
        current = job if fit == 0 else Job(store=store)
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


def test_what_is_offered_while_the_store_does_not_answer_is_bounded(monkeypatch):
    calls, make = [], ranks.queue.SimpleQueue
    monkeypatch.setattr(ranks.queue, "SimpleQueue", lambda: calls.append(make()) or calls[-1])
    job, before = Job(), alive(Part)
    for window in range(1000):
        job.offer(window)
    assert alive(Part) == before + 3 * rounds.KEPT
    assert [waiting.qsize() for waiting in calls] == [1] * 3


def test_an_end_takes_the_verdict_back_and_lets_go_of_the_store():
    before, job = alive(board.StoreNotes), Job()
    job.step()
    assert alive(board.StoreNotes) == before + 3
    job.end()
    assert alive(board.StoreNotes) == before
    assert dist.PrefixStore("perf_callbacks", job.store).get("verdict") == b""
    job.end()
    job.offer(0)
    assert job.latest == [None] * 3


def test_one_process_may_be_the_whole_job():
    job = Job(world_size=1)
    job.step()
    job.through(0)
    assert job.latest == [job.whole(0)]
    assert job.ranks[0].take() == [job.whole(0)]


class Threads:
    """The same with the threads that do the rounds."""

    def __init__(self, job):
        self.job = job
        for exchange in job.ranks:
            exchange.start()

    def until(self, condition):
        while not condition():  # every test has a time limit
            time.sleep(0.005)

    def end(self):
        for exchange in self.job.ranks:
            exchange.close()
        for thread in side_threads():
            thread.join(60)
        assert side_threads() == []


def test_threads_exchange_windows_and_end(caplog, monkeypatch):
    job = Job(store=dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    threads = Threads(job)
    assert {exchange.agree().run_id for exchange in job.ranks} == {job.run_id}
    for window in range(3):
        job.offer(window)
        threads.until(lambda window=window: job.latest == [job.whole(window)] * 3)
    monkeypatch.setattr(ranks, "CLOSE_SECONDS", 60.0)  # a busy machine may take long
    for exchange in job.ranks:
        exchange.close()
        exchange.close()
    assert side_threads() == []
    threads.end()
    assert dist.PrefixStore("perf_callbacks", job.store).get("verdict") == b""
    assert caplog.records == []


def test_a_server_that_goes_away_is_told_once_by_each_rank(caplog):
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    job = Job(store=dist.PrefixStore("default_pg", client))
    threads = Threads(job)
    threads.until(lambda: all(exchange.window for exchange in job.ranks))
    del server
    gc.collect()
    with caplog.at_level(logging.INFO):
        for window in range(5):
            job.offer(window)
            threads.until(lambda: all(exchange.failure for exchange in job.ranks))
        threads.end()
    assert len(caplog.messages) == 3
    start = "perf_callbacks: ranks stop exchanging, training goes on: DistNetworkError: "
    assert all(message.startswith(start) and "\n" not in message for message in caplog.messages)


def test_a_store_that_rank_0_serves_does_not_end_before_its_last_word(capfd):
    """And it ends then: each rank lets go of the store."""
    job = Job(world_size=2, store=dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    port = job.store.port
    threads = Threads(job)
    assert all(exchange.agree(20) for exchange in job.ranks)
    job.store = None
    threads.end()
    assert capfd.readouterr().err == ""
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


def test_who_agrees_waits_for_rank_0_no_longer_than_it_says():
    job = Job()
    job.ranks[1].start()
    assert job.ranks[1].agree(0.05) is None
    job.ranks[0].start()
    assert job.ranks[1].agree(20) == job.ranks[0].agree(0)
    for exchange in job.ranks:
        exchange.close()


def test_nobody_waits_for_a_verdict_once_the_exchange_is_over():
    exchange = Job(store=object()).ranks[1]
    exchange.start()
    assert exchange.agree(20) is None
    unstarted = Job().ranks[1]
    unstarted.close()
    unstarted.start()
    assert unstarted.agree(20) is None


def test_a_handler_of_logs_may_close_the_exchange_in_its_own_thread():
    job = Job(store=object())
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
    job = Job(world_size=1)
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
    exchange = Job().ranks[1]
    exchange.start()
    assert exchange.agree(20) is None
    exchange.offer(Job().part(0, 1))
    exchange.close()
    assert caplog.messages == ["perf_callbacks: ranks stop exchanging, training goes on: can't start new thread"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked on this system")
def test_a_forked_child_says_and_waits_for_nothing():
    job = Job(world_size=2)
    job.ranks[1].start()
    (thread,), before = side_threads(), alive(Part)
    child = os.fork()
    if child == 0:
        try:
            assert job.ranks[1].agree(20) is None
            job.offer(0)
            job.ranks[1].close()
            ranks._at_exit()
            os._exit(alive(Part) - before)
        finally:
            os._exit(99)
    assert os.waitpid(child, 0)[1] == 0
    assert thread.is_alive()
    job.ranks[1].close()
    thread.join(60)


def test_without_a_process_group_there_is_no_store():
    assert board.default_store() is None


def test_the_store_of_the_process_group_is_found():
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        found = board.default_store()
        found.set("key", "value")
        assert store.num_keys() > 0
        notes = board.StoreNotes(found)
        notes.write("a", "b")
        assert (notes.read("a"), notes.read("a", "c"), notes.read()) == (["b"], [], [])
    finally:
        dist.destroy_process_group()
    assert board.default_store() is None


class OldPrefixStore:
    """As torch's, before stores could be cloned."""

    def __init__(self, prefix, store):
        self.prefix, self.underlying_store, self.timeout = prefix, store, 300


class OldTCPStore:
    def __init__(self, host, port, **options):
        self.host, self.port, self.options = host, port, options


def test_a_store_that_can_not_be_cloned_is_connected_to_anew(monkeypatch):
    class Names:
        PrefixStore, TCPStore = OldPrefixStore, OldTCPStore

    monkeypatch.setattr(board, "c10d", Names)
    server = OldTCPStore("there", 29500, is_master=True)
    for count in ("0", "2"):
        own = board.connection(OldPrefixStore("default_pg", OldPrefixStore("", server)))
        assert own.prefix == count
        client = own.underlying_store
        assert client is not server
        assert (client.host, client.port) == ("there", 29500)
        assert client.options == {"is_master": False, "wait_for_workers": False, "timeout": 300}
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    in_memory = object()
    assert board.connection(in_memory) is in_memory


def test_a_verdict_says_what_holds():
    job = Job()
    settings = job.ranks[0].job_settings
    assert settings == JobSettings(fit=settings.fit, run_id=job.run_id, window=LENGTH, signals=True)
    assert len({Job().ranks[0].job_settings.fit for _ in range(10)}) == 10


def test_every_rank_hears_where_rank_0_writes():
    job = Job(world_size=2, directory="/out/“1”")
    job.step()
    assert [exchange.job_settings.directory for exchange in job.ranks] == ["/out/“1”"] * 2


def test_what_all_ranks_ask_for_stands_in_the_window():
    job = Job()
    job.step()
    asks = {f"keep item {item}": 1 for item in range(50)}
    for window in range(2):
        job.offer(window, asks=asks)
        for _ in range(3):
            job.step()
            job.now += 1
    assert [latest.last_step for latest in job.latest] == [2 * LENGTH] * 3
    assert [latest.asks for latest in job.latest] == [asks] * 3


def test_the_use_of_all_ranks_stands_in_the_window_of_rank_0_alone(job):
    for rank in range(3):
        job.offer(0, rank, resources={"cpu_cores": 1.0 + rank, **({"power_watts": 400.0} if rank else {})})
    for _ in range(3):
        job.step()
        job.now += 1
    (window,) = job.ranks[0].take()
    assert window.job == {"job_cpu_cores": 6.0}  # the power of rank 0 is unknown
    assert window.by_rank == {"cpu_cores": (1.0, 2.0, 3.0), "power_watts": (None, 400.0, 400.0)}
    assert job.latest == [window, job.whole(0), job.whole(0)]


def test_without_a_rank_the_use_of_the_job_is_unknown_and_that_of_the_others_known(job):
    job.offer(0, 0, 2, resources={"cpu_cores": 1.0})
    for _ in range(20):
        job.step(0, 2)
        job.now += 1
    (window,) = job.ranks[0].take()
    assert (window.missing_ranks, window.job) == ((1,), {})
    assert window.by_rank == {"cpu_cores": (1.0, None, 1.0)}


COLUMN = array("f", [0.5] * LENGTH)


def test_each_window_is_analysed_once_with_the_parts_of_the_ranks(job):
    reader, elsewhere = Windows(job.ranks[0]), Windows(job.ranks[1])
    gathered = reader.all
    job.ranks[2].role = {"data": 1, "tensor": 0}
    for window in range(2):
        job.offer(window, signals={"gc": COLUMN})
        for _ in range(3):
            job.step()
    assert [(window.first_step, window.steps) for window in gathered] == [(1, LENGTH), (LENGTH + 1, LENGTH)]
    assert gathered[1].signals == {rank: {"gc": COLUMN} for rank in range(3)}
    assert gathered[1].roles == {2: {"data": 1, "tensor": 0}}
    assert elsewhere.all == []


def test_an_error_in_the_reader_ends_its_reading_and_nothing_else(job, caplog):
    def fail(window):
        raise ZeroDivisionError("division by zero")

    failing = Windows(job.ranks[0], fail)
    for window in range(3):
        job.through(window)
    assert len(failing.all) == 1
    assert job.latest == [job.whole(2)] * 3
    told = "perf_callbacks: the windows of the ranks are no longer compared, training goes on: "
    assert caplog.messages == [told + "ZeroDivisionError: division by zero"]


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


def test_ranks_that_counted_different_steps_are_analysed_all_the_same(job):
    reader = Windows(job.ranks[0])
    gathered = reader.all
    job.offer(0, 0, 1)
    job.offer(0, 2, steps=3)
    job.step()
    job.step()
    assert [sorted(window.signals) for window in gathered] == [[0, 1, 2]]
    assert job.latest == [None] * 3


def test_a_window_without_a_rank_missing_at_the_deadline_is_told_once(job, caplog):
    reader = Windows(job.ranks[0])
    gathered = reader.all
    for window in range(3):
        job.offer(window, 0, 2)
        job.step(0, 2)
        assert len(gathered) == window
        job.now += rounds.DEADLINE_SECONDS
        job.step(0, 2)
    assert job.ranks[0].take() == [job.lacking(window, 1) for window in range(3)]
    assert [sorted(window.signals) for window in gathered] == [[0, 2]] * 3
    assert job.latest == [job.lacking(2, 1), None, job.lacking(2, 1)]
    (message,) = caplog.messages
    assert message == (
        "perf_callbacks: no message came from 1 of 3 ranks for steps 1 to 50 (rank 1). "
        "Rates of the job are left out while ranks are missing."
    )
    job.through(3)
    assert job.latest == [job.whole(3)] * 3


@pytest.mark.parametrize("there", [(0,), (0, 2)])
def test_a_rank_that_is_heard_of_alone_is_compared_with_nobody(job, there):
    reader = Windows(job.ranks[0])
    gathered = reader.all
    job.offer(0, *there, signals={"local": COLUMN})
    job.step(*there)
    job.now += rounds.DEADLINE_SECONDS
    job.step(0)
    assert [sorted(window.signals) for window in gathered] == [[*there] if len(there) > 1 else []]
    assert Stragglers().window(range(1, LENGTH + 1), gathered[0].signals) == []


@pytest.mark.parametrize("amount", [2**63, 2**200, -1, math.inf, math.nan])
def test_useful_tokens_that_can_not_be_true_are_unknown(job, amount):
    job.offer(0, 0, 2)
    job.offer(0, 1, useful_tokens=amount)
    job.step()
    job.step()
    assert [exchange.failure for exchange in job.ranks] == [None] * 3
    (window,) = job.ranks[0].take()
    assert window.useful_tokens == (2**63 + 14 if amount == 2**63 else None)
    assert window.samples == job.whole(0).samples


def test_long_steps_move_the_deadline(job):
    job.offer(0, 0, 2, seconds=60.0 * (LENGTH - 1))
    job.step(0, 2)
    job.now += 100
    job.step(0, 2)
    job.offer(0, 1)
    job.step(1, 0)
    assert job.latest[0] == replace(job.whole(0), seconds=60.0 * (LENGTH - 1))


def test_a_rank_deaf_for_thirty_seconds_costs_windows_and_comes_back(job):
    """Its steps go on, as nothing in the training waits for the store."""
    for window in range(6):  # five seconds each
        job.offer(window)
        job.step(0, 2)
        job.now += 5
        job.step(0, 2)
    said = job.ranks[0].take()
    assert said == [job.lacking(window, 1) for window in range(len(said))]
    assert len(said) == 5
    job.step(1, 0, 1, 2)
    assert job.ranks[0].take() == [job.whole(5)]
    assert job.latest == [job.whole(5)] * 3


def test_rank_0_that_was_deaf_for_thirty_seconds_misses_nobody(job):
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


def test_a_rank_that_ends_early_is_missing_from_then_on(job):
    job.through(0)
    job.leave(2)
    job.offer(1, 0, 1)
    job.step(0, 1)
    job.now += rounds.DEADLINE_SECONDS
    job.step(0, 1)
    assert job.latest[:2] == [job.lacking(1, 2)] * 2


def test_ranks_that_were_restarted_take_no_part_of_before_for_theirs():
    before = Job()
    before.step()
    before.through(0)
    before.offer(1)
    before.step(1, 2)  # killed with a part under way
    after = Job(store=before.store, attempt=1)
    reader = Windows(after.ranks[0])
    gathered = reader.all
    after.step()
    after.offer(1, 0)
    after.step(0)
    assert gathered == []
    after.offer(1, 1, 2)
    after.step(1, 2, 0)
    assert sorted(gathered[0].signals) == [0, 1, 2]
    assert after.latest[0] == after.whole(1)


def test_settings_that_differ_give_way_to_those_of_rank_0(job):
    job = Job(rank1=None, rank2=7, switches={0: True, 1: False, 2: False})
    job.step()
    assert [(exchange.window, exchange.signals) for exchange in job.ranks] == [(LENGTH, True)] * 3
    job.through(0)
    assert job.latest == [job.whole(0)] * 3


def test_without_the_search_for_slow_ranks_parts_carry_no_signals():
    job = Job(switches={0: False, 1: True, 2: True})
    job.step()
    assert [exchange.signals for exchange in job.ranks] == [False] * 3
    job.through(0)
    assert job.latest == [job.whole(0)] * 3


@pytest.mark.parametrize(
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
    exchange = ranks.meet(place(tmp_path, rank=0, world_size=2), PerfConfig(**changes))
    assert (exchange.window, exchange.signals) == (window, signals)
    exchange.close()
    for thread in side_threads():
        thread.join(60)


def test_what_was_asked_for_holds_while_a_rank_is_missing(job):
    for window in range(2):
        job.offer(window, asks={"gc_interval": 50})
        for _ in range(3):
            job.step()
    held = job.latest[1].holds
    assert held == {"gc_interval": (1 + NOTICE) * LENGTH}
    job.offer(2, 0, 2, asks={"gc_interval": 9})
    job.step(0, 2)
    job.now += rounds.DEADLINE_SECONDS
    job.step(0, 2)
    assert (job.latest[2].missing, job.latest[2].asks, job.latest[2].holds) == (1, {"gc_interval": 50}, held)
    job.offer(3, asks={"gc_interval": 50})
    for _ in range(3):
        job.step()
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
    job = Job(world_size=rounds.FEW + 1)
    job.step()
    job.through(0)
    assert job.latest == [job.whole(0), *[None] * rounds.FEW]
    assert job.step() == [None] * (rounds.FEW + 1)
    job.through(1)
    assert job.latest == [job.whole(1), *[job.whole(0)] * rounds.FEW]


def test_thousands_of_parts_are_handled_in_slices_with_a_breath_in_between(monkeypatch):
    job = Job(world_size=200)
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
    job, asked, get = Job(world_size=8), [], board.StoreNotes.get
    monkeypatch.setattr(board.StoreNotes, "get", lambda self, keys: asked.append(len(keys)) or get(self, keys))
    job.step()
    job.offer(0, signals={"gc": COLUMN})
    for _ in range(3):
        job.step()
    assert job.latest[0] == job.whole(0)
    assert asked[:3] == [3, 3, 1]


@pytest.fixture
def served():
    """A store that is served to other processes, as that of most process groups."""
    return dist.PrefixStore("default", dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False))


def place(tmp_path, **changes):
    return FitLocation(integration="loop", directory=tmp_path, device=torch.device("cpu"), **changes)


@pytest.mark.skipif(sys.platform == "win32", reason="no limit is known there")
@pytest.mark.parametrize("rank", [0, 1])
def test_more_ranks_than_files_may_be_open_exchange_nothing(served, tmp_path, monkeypatch, caplog, rank):
    import resource

    monkeypatch.setattr(board, "default_store", lambda: served)
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = allowed * 3 // 8 + 1
    opened = []
    monkeypatch.setattr(board, "connection", opened.append)
    assert ranks.meet(place(tmp_path, rank=rank, world_size=needed), PerfConfig()) is None
    assert opened == []
    said = f"{allowed:,} open files are allowed and {needed:,} ranks would need {-(-needed * 8 // 3):,}"
    message = f"perf_callbacks: ranks exchange nothing, training goes on: {said}; raise `ulimit -n`."
    assert caplog.messages == ([] if rank else [message])


@pytest.mark.parametrize(
    ("allowed", "world_size", "connections", "fits"),
    [
        (1024, 384, 384, True),
        (1024, 385, 385, False),
        (256, 96, 96, True),
        (256, 97, 97, False),
        (1024, 680, 85, True),
        (1024, 688, 86, False),
        (None, 10**6, 10**6, True),
    ],
)
def test_all_connections_take_three_quarters_of_the_open_files_or_less(
    served, monkeypatch, allowed, world_size, *, connections, fits
):
    monkeypatch.setattr(board, "open_files_allowed", lambda: allowed)
    assert (board.shortage(served, world_size, connections) is None) == fits


def test_a_store_without_connections_needs_none(monkeypatch):
    monkeypatch.setattr(board, "open_files_allowed", lambda: 16)
    assert board.shortage(dist.HashStore(), 10**6, 10**6) is None
