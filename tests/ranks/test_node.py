"""Jobs of many ranks: the first rank of each machine talks for the others, who leave it their notes in files."""

import os
import shutil
import stat

import pytest
import torch
import torch.distributed as dist
from jobs import until
from jobs.exchanges import ExchangeJob, Windows
from rows import each_row

from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.ranks import exchange as ranks, node, rounds, store as board
from perf_callbacks.ranks.bundles import Bundle
from perf_callbacks.ranks.node import Node, gathered
from perf_callbacks.ranks.packed_parts import pack_bundle, unpack_bundles

PER_NODE = 4


@pytest.fixture(autouse=True)
def _no_fit_before(monkeypatch):
    monkeypatch.setattr(rounds, "OBEYED", {})


@pytest.fixture
def nodes(tmp_path):
    """The machine of a rank: ranks 0 to 3 are on one, 4 to 7 on another."""

    def of(rank):
        first = rank - rank % PER_NODE
        return Node(range(first, first + PER_NODE), rank, tmp_path / f"node{first}")

    return of


@pytest.fixture
def job(nodes):
    job = ExchangeJob(world_size=8, nodes=nodes)
    for _ in range(2):
        job.step()
    return job


def files_of(directory):
    return sorted(path.name for path in directory.iterdir())


def test_windows_of_several_machines_are_known_to_all_by_few_keys(job, tmp_path):
    assert {exchange.job_settings for exchange in job.ranks} == {job.ranks[0].job_settings}
    for window in range(50):
        job.through(window)
        assert job.latest == [job.whole(window)] * 8
    assert job.ranks[0].take() == [job.whole(window) for window in range(50)]
    assert job.store.num_keys() == 2 + 8 * rounds.KEPT
    keys = [f"perf_callbacks/{rounds.slot(rank, window, 8)}" for rank in range(8) for window in range(rounds.KEPT)]
    assert len([key for key in keys if job.store.get(key)]) == 2 * rounds.KEPT
    assert stat.S_IMODE((tmp_path / "node0").stat().st_mode) == 0o700


def test_a_rank_without_a_part_is_missing_and_its_machine_is_there(job):
    reader = Windows(job.ranks[0])
    there = [rank for rank in range(8) if rank not in {2, 5}]
    job.offer(0, *there)
    for _ in range(5):
        job.step(*there)
        job.now += 4
    assert job.latest[0] == job.lacking(0, 2, 5)
    assert [sorted(window.signals) for window in reader.all] == [there]


def test_the_last_rank_of_a_machine_is_in_time_until_the_deadline(job):
    there = [rank for rank in range(8) if rank != 6]
    job.offer(0, *there)
    for _ in range(2):
        job.step()
        job.now += node.GATHER_SECONDS
    job.step()
    job.offer(0, 6)
    for _ in range(3):
        job.step()
    assert job.latest[0] == job.whole(0)


def test_without_the_rank_that_talks_the_whole_machine_is_missing(job):
    there = [0, 1, 2, 3, 5, 6, 7]
    for window in range(2):
        job.offer(window, *there)
        for _ in range(5):
            job.step(*there)
            job.now += 4
    assert job.latest[0] == job.lacking(1, 4, 5, 6, 7)
    assert job.latest[5] is None
    assert job.failures == [None] * 8


def test_garbage_in_the_directory_is_no_error(job, tmp_path):
    (tmp_path / "node4" / "part0 5").write_bytes(b"\x00" * 100)
    (tmp_path / "node4" / "window").write_bytes(b"\xff{")
    (tmp_path / "node4" / "stalls 5").write_bytes(b"\xff\n")
    (tmp_path / "node4" / "verdict").write_bytes(b"[" * 10_000)
    job.through(0)
    assert job.latest[:5] == [job.whole(0)] * 5
    assert job.failures == [None] * 8


@each_row("sizes", [(2, 4, 2), (4, 3, 1), (1, 5, 2), (3, 1, 1, 3)])
def test_machines_may_have_different_numbers_of_ranks(tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(node.tempfile, "gettempdir", lambda: str(tmp_path))
    places = [(place, number) for number in sizes for place in range(number)]
    job = ExchangeJob(world_size=8, nodes=lambda rank: gathered(rank, 8, places[rank], many=4, job=("here", "29500")))
    job.step()
    job.step()
    for window in range(2):
        job.offer(window)
        for _ in range(4):
            job.step()
            job.now += 2
        assert job.latest[0] == job.whole(window)
    job.end()


def test_parts_that_are_too_large_for_a_note_are_sent_in_several(job, monkeypatch):
    fit = rounds.mark(job.ranks[0].job_settings.fit)
    size = len(pack_bundle(Bundle.from_part(job.part(0, 1)), fit))
    for module in (node, board):
        monkeypatch.setattr(module, "LARGEST", 2 * size + 40)  # the digits of the seconds differ
    for window in range(2):
        job.offer(window)
        for _ in range(4):
            job.step()
            job.now += 2
        assert job.latest[0] == job.whole(window)
    notes = [job.store.get(f"perf_callbacks/{rounds.slot(rank, 1, 8)}") for rank in range(8)]
    bundles = [[*bundle.ranks] for note in notes for bundle in unpack_bundles(note, fit)]
    assert bundles == [[1], [2, 3], [4, 5], [6, 7]]
    assert [bool(note) for note in notes] == [True, False] * 4


@each_row("order", [(3, 2, 1, 0), (0, 3, 1, 2)])
def test_ranks_leave_in_any_order_and_nothing_on_the_machine(nodes, tmp_path, order):
    job = ExchangeJob(world_size=4, nodes=nodes)
    for _ in range(2):
        job.step()
    job.through(0)
    assert [*tmp_path.glob("node*/*")]
    for rank in order:
        job.leave(rank)
    assert job.failures == [None] * 4
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_a_fit_leaves_the_directory_to_the_next(job, nodes):
    later = ExchangeJob(world_size=8, store=job.store, nodes=nodes)
    later.step()
    later.step()
    job.end()
    later.through(0)
    assert later.latest == [later.whole(0)] * 8


@each_row("mode", [0o777, 0o750])
def test_a_directory_that_is_open_to_other_users_ends_the_exchange(nodes, tmp_path, mode):
    (tmp_path / "node0").mkdir(exist_ok=True)
    (tmp_path / "node0").chmod(mode)
    job = ExchangeJob(world_size=4, nodes=nodes)
    job.step()
    assert (
        job.failures
        == [f"PermissionError: the directory {tmp_path / 'node0'} is open to other users (mode {mode:o}); remove it"]
        * 4
    )


@pytest.mark.skipif(
    not hasattr(os, "getuid"), reason="Windows has no user numbers, by which a directory of the same user is known"
)
def test_a_directory_of_somebody_else_ends_the_exchange(nodes, tmp_path, monkeypatch):
    (tmp_path / "node0").mkdir(mode=0o700)
    monkeypatch.setattr(node.os, "getuid", lambda: (tmp_path / "node0").stat().st_uid + 1)
    job = ExchangeJob(world_size=4, nodes=nodes)
    job.step()
    assert job.failures == [f"PermissionError: the directory {tmp_path / 'node0'} belongs to somebody else"] * 4


def test_a_link_in_place_of_the_directory_ends_the_exchange(nodes, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "node0").symlink_to(tmp_path / "elsewhere")
    job = ExchangeJob(world_size=4, nodes=nodes)
    job.step(1)
    assert job.ranks[1].failure == f"PermissionError: {tmp_path / 'node0'} is not a directory; remove it"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_directory_that_was_swapped_is_neither_read_nor_written(job, tmp_path):
    job.through(0)
    (tmp_path / "node4").rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "node4")
    (tmp_path / "node4").chmod(0o777)
    (tmp_path / "node4" / "verdict").write_text("forged")
    before = files_of(tmp_path / "node4")
    job.offer(1)
    job.step()
    assert "is open to other users (mode 777)" in job.ranks[5].failure
    assert (files_of(tmp_path / "node4"), (tmp_path / "node4" / "verdict").read_text()) == (before, "forged")


def test_notes_from_before_the_process_began_are_of_a_job_that_was_killed(nodes, tmp_path):
    killed = ExchangeJob(world_size=4, nodes=nodes)
    killed.step()
    killed.step()
    for path in tmp_path.glob("*/*"):
        os.utime(path, (1e9, 1e9))
    rounds.OBEYED.clear()
    later = ExchangeJob(world_size=4, nodes=nodes)
    later.step(1, 2, 3)
    assert [exchange.job_settings for exchange in later.ranks[1:]] == [None] * 3
    later.step()
    later.step()
    later.through(0)
    assert later.latest == [later.whole(0)] * 4


def test_each_attempt_of_a_job_has_a_directory_and_removes_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(node.tempfile, "gettempdir", lambda: str(tmp_path))

    def nodes(attempt, port="29500"):
        return lambda rank: gathered(rank, 8, (rank, 8), many=4, job=("here", port), attempt=attempt)

    killed = ExchangeJob(world_size=8, nodes=nodes(0))
    other = ExchangeJob(world_size=8, nodes=nodes(0, "29501"))
    for job in (killed, other, killed, other):
        job.step()
    rounds.OBEYED.clear()
    later = ExchangeJob(world_size=8, nodes=nodes(1))
    later.step(1)
    assert later.ranks[1].job_settings is None
    later.step()
    later.step()
    later.through(0)
    assert later.latest == [later.whole(0)] * 8
    assert {path.name for path in tmp_path.iterdir()} == {
        nodes(1)(0).directory.name,
        nodes(0, "29501")(0).directory.name,
    }


MANY = rounds.MANY + 8


@each_row(
    ("rank", "world_size", "local", "expected"),
    [
        (0, MANY, (0, 8), range(8)),  # first
        (13, MANY, (5, 8), range(8, 16)),  # second machine
        (13, rounds.MANY, (5, 8), None),  # few ranks
        (13, MANY, None, None),  # unknown
        (13, MANY, (0, 1), None),  # one per machine
        (13, MANY + 1, (5, 8), range(8, 16)),  # uneven machines
        (13, MANY, (4, 8), range(9, 17)),  # after a smaller machine
        (3, MANY, (4, 8), None),  # not one after the other
        (MANY - 1, MANY, (5, 8), None),  # not one after the other, at the end
    ],
)
def test_the_first_rank_talks_for_its_machine_where_there_are_many(rank, world_size, local, expected):
    machine = gathered(rank, world_size, local, many=rounds.MANY, job=("here", "29500"))
    assert (None if machine is None else machine.ranks) == expected
    assert machine is None or machine.talks == (rank == expected[0])


def test_ranks_of_the_same_machine_meet_and_other_jobs_do_not():
    same = [gathered(rank, MANY, (rank, 8), many=64, job=("here", "29500")).directory for rank in range(8)]
    assert len({*same}) == 1
    others = [("here", "29501"), ("there", "29500")]
    assert len({same[0], *[gathered(0, MANY, (0, 8), many=64, job=other).directory for other in others]}) == 3
    assert gathered(8, MANY, (0, 8), many=64, job=("here", "29500")).directory != same[0]


def test_a_job_of_many_ranks_takes_a_connection_for_each_machine(tmp_path, monkeypatch):
    store = dist.PrefixStore("default", dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False))
    monkeypatch.setattr(board, "default_store", lambda: store)
    monkeypatch.setattr(board, "open_files_allowed", lambda: 1024)
    monkeypatch.setattr(node.tempfile, "gettempdir", lambda: str(tmp_path))
    connections, connection = [], board.connection
    monkeypatch.setattr(board, "connection", lambda store: connections.append(store) or connection(store))
    met = []
    for rank in range(8):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
        place = FitLocation(
            integration="loop",
            directory=tmp_path,
            device=torch.device("cpu"),
            rank=rank,
            world_size=512,
            carried={"run_id": f"run{rank}"},
        )
        met.append(ranks.meet(place, PerfConfig()))
    assert {exchange.agree(30).run_id for exchange in met} == {"run0"}
    assert len(connections) == 1
    for exchange in met:
        exchange.close()
    until(lambda: list(tmp_path.iterdir()) == [])


def test_a_job_without_the_directory_of_its_machine_goes_on(nodes, tmp_path):
    (tmp_path / "node0").write_text("a file")
    job = ExchangeJob(world_size=4, nodes=nodes)
    job.step()
    assert None not in job.failures
    job.offer(0)
    job.end()
    assert (tmp_path / "node0").read_text() == "a file"


def test_rank_0_of_many_passes_the_parts_of_its_machine_on_soon(tmp_path):
    """Its own looks at the store may wait longer."""
    job = ExchangeJob(
        world_size=rounds.MANY + 8, nodes=lambda rank: Node(range(8), rank, tmp_path) if rank < 8 else None
    )
    job.step(0)
    job.offer(0, 0)
    pauses = []
    for now in (0.0, 0.25, 0.75, 1.5, 3.0):
        job.now = 1000.0 + now
        pauses += job.step(0)
    assert pauses == [0.5, 0.5, 0.25, 1.5, node.LOOK_SECONDS]
