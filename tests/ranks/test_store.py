"""The store of ranks: whatever is in it or happens to it ends the exchange at most, and the training goes on."""

import gc
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from jobs.exchanges import ExchangeJob
from rows import each_row

from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.ranks import exchange as ranks, leader, rounds, store as board


@each_row("garbage", ["", "{}", "\n", "null", "\x00", "[" * 100_000, "9" * 20_000, "half"])
@each_row("key", ["verdict", "window", "part0 2", "part1 1", "part1 2"])
def test_garbage_in_the_store_is_no_error(key, garbage):
    job = ExchangeJob()
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
    assert job.failures == [None] * 3
    assert job.latest == [job.whole(2)] * 3


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


@each_row("rank", [0, 1])
@each_row("calls", range(14))
def test_a_store_that_fails_ends_the_exchange_and_nothing_else(monkeypatch, rank, calls):
    """The store of one rank, at its n-th call."""
    job, stores = ExchangeJob(), []

    def connect(prefix, store):
        own = dist.PrefixStore(prefix, store)
        stores.append(FailingStore(own, calls) if len(stores) == rank else own)
        return stores[-1]

    with monkeypatch.context() as patched:
        patched.setattr(board, "c10d", SimpleNamespace(PrefixStore=connect))
        job.step()
    for window in range(3):
        job.through(window)
    assert stores[rank].calls < 0
    assert job.ranks[rank].failure == "DistNetworkError: Connection reset by peer"
    assert job.ranks[1 - rank].failure is None
    latest = job.latest
    job.through(3)
    if rank == 0:
        assert job.latest == latest
    else:
        for seconds in (rounds.DEADLINE_SECONDS, leader.LATE_SECONDS):
            job.now += seconds
            job.step(0)
        assert job.latest[:2] == [job.lacking(3, 1), latest[1]]
    assert job.step(rank) == [None]
    before = stores[rank].calls
    job.end()
    assert stores[rank].calls == before


def test_a_store_without_a_connection_ends_the_exchange():
    job = ExchangeJob(store=object())
    assert job.step() == [None] * 3
    assert all(exchange.failure.startswith("TypeError: ") for exchange in job.ranks)


def test_an_end_takes_the_verdict_back_and_lets_go_of_the_store():
    def alive():
        gc.collect()
        return sum([type(thing) is board.StoreNotes for thing in gc.get_objects()])

    before, job = alive(), ExchangeJob()
    job.step()
    assert alive() == before + 3
    job.end()
    assert alive() == before
    assert dist.PrefixStore("perf_callbacks", job.store).get("verdict") == b""
    job.end()
    job.offer(0)
    assert job.latest == [None] * 3


def test_the_store_of_the_process_group_is_found():
    assert board.default_store() is None
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        default = board.default_store()
        default.set("key", "value")
        assert store.num_keys() > 0
        notes = board.StoreNotes(default)
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


@pytest.fixture
def served():
    """A store that is served to other processes, as that of most process groups."""
    return dist.PrefixStore("default", dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False))


@pytest.mark.skipif(sys.platform == "win32", reason="no limit is known there")
def test_more_ranks_than_files_may_be_open_exchange_nothing(served, tmp_path, monkeypatch, caplog):
    import resource

    monkeypatch.setattr(board, "default_store", lambda: served)
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = allowed * 3 // 8 + 1
    opened = []
    monkeypatch.setattr(board, "connection", opened.append)
    for rank in range(2):
        place = FitLocation(
            integration="loop", directory=tmp_path, device=torch.device("cpu"), rank=rank, world_size=needed
        )
        assert ranks.meet(place, PerfConfig()) is None
    assert opened == []
    limit = f"{allowed:,} open files are allowed and {needed:,} ranks would need {-(-needed * 8 // 3):,}"
    message = f"perf_callbacks: ranks exchange nothing, training goes on: {limit}; raise `ulimit -n`."
    assert caplog.messages == [message]  # of rank 0


@each_row(
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
