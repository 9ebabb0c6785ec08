"""The journal on disk, and everything that may happen to a disk."""

import errno
import os
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeClock, a_run
from journals import descriptors

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Checklist, Gc, Row, Span, Steps
from perf_callbacks.kernel.records.journal_file import LONGEST_LINE, FileJournal, read

ROW, SPAN = Row(step=1, metrics={"perf/step_time": 0.5}), Span(kind="evaluation", step=1, start=0.0, seconds=1.0)
RARE = [a_run(), Checklist(item="gc", status="applied")]
FORKED = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def pause(seconds):
    return Gc(step=1, stage="data", generation=0, start=0.0, seconds=seconds, collected=0, automatic=True)


def block(number):
    return Steps(step=(number,), step_time=(0.5,))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out" / "perf_callbacks" / "rank0.jsonl"


@pytest.fixture
def complaints():
    return []


@pytest.fixture
def make(path, complaints):
    """Opens journals at the path, and closes them in the end."""
    opened = []

    def journal(max_bytes=1_000_000, clock=None):
        opened.append(
            FileJournal(path, max_bytes=max_bytes, complain=complaints.append, began=1000.0, clock=clock or FakeClock())
        )
        return opened[-1]

    yield journal
    for journal in opened:
        journal.close()


def records(path):
    return [entry.record for entry in read(path)]


def test_records_are_written_in_order_with_their_time(path, make):
    clock = FakeClock()
    journal = make(clock=clock)
    assert not path.parent.exists()
    journal.write(a_run(from_env=("gc",)))
    assert records(path) == [a_run(from_env=("gc",))]
    clock.sleep(2.5)
    journal.write(ROW)
    journal.close()
    journal.close()
    journal.write(ROW)
    journal.flush()
    assert list(read(path)) == [Entry(0.0, a_run(from_env=("gc",))), Entry(2.5, ROW)]


def test_rare_records_are_on_disk_at_once(path, make):
    journal = make()
    for record in (ROW, *RARE):
        journal.write(record)
        assert records(path)[-1] == record


@pytest.mark.parametrize("record", [ROW, SPAN, block(1)], ids=lambda record: type(record).__name__)
def test_lines_of_steps_are_written_at_most_ten_times_a_second(path, make, record):
    clock = FakeClock()
    journal, written = make(clock=clock), []
    for _ in range(41):
        journal.write(record)
        written.append(len(records(path)))
        clock.sleep(1 / 32)
    assert (written[:6], len(set(written))) == ([1, 1, 1, 1, 5, 5], 11)


def test_collections_wait_for_another_record_or_for_256_of_them(path, make):
    journal = make()
    journal.write(ROW)
    written = []
    for _ in range(257):
        journal.write(pause(0.5))
        written.append(len(records(path)))
    assert written == [1] * 255 + [257, 257]
    journal.flush()
    assert len(records(path)) == 258


def test_lines_are_written_whole_if_the_system_takes_them_in_pieces(path, make, monkeypatch):
    write = os.write
    journal = make()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:7]))
        journal.write(block(1))
    assert records(path) == [block(1)]


def refuse(number):
    def call(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    return call


def unwritable(path):
    path.mkdir(parents=True)


def file_in_the_way(path):
    path.parent.parent.mkdir()
    path.parent.write_text("")


@pytest.mark.parametrize(
    ("obstacle", "reason"),
    [(unwritable, "Is a directory"), (file_in_the_way, "File exists")],
    ids=["directory", "file"],
)
def test_a_path_that_cannot_be_opened_is_reported_once(path, make, complaints, obstacle, reason):
    obstacle(path)
    assert_gone(make(), path, complaints, reason)


def test_a_disk_that_refuses_is_reported_once_and_keeps_its_lines(path, make, complaints, monkeypatch):
    reasons = {"open": [errno.EROFS, errno.EACCES], "write": [errno.ENOSPC, errno.EIO, errno.EDQUOT]}
    for call, number in [(call, number) for call, numbers in reasons.items() for number in numbers]:
        clock, before = FakeClock(), records(path) if path.exists() else []
        journal = make(clock=clock)
        if call == "write":
            journal.write(block(1))
            clock.sleep(1)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse(number))
            journal.write(block(2))
        assert_gone(journal, path, complaints, os.strerror(number))
        assert (records(path) if path.exists() else []) == before + [block(1)] * (call == "write")
        complaints.clear()


def assert_gone(journal, path, complaints, reason):
    for _ in range(300):
        journal.write(block(3))
    journal.flush()
    journal.close()
    assert journal.path is None
    assert complaints == [f"no journal at {path}: {reason}. Training and metrics go on without it."]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="links and pipes of POSIX")
@pytest.mark.parametrize(
    ("obstacle", "reason"),
    [
        (lambda path: path.symlink_to(path.with_name("secret")), "it is a symbolic link"),
        (lambda path: path.symlink_to(path.with_name("nothing")), "it is a symbolic link"),
        (os.mkfifo, "it is not a regular file"),
    ],
)
def test_a_link_or_a_pipe_in_place_of_a_journal_is_not_written(path, make, complaints, obstacle, reason):
    path.parent.mkdir(parents=True, exist_ok=True)
    secret = path.with_name("secret")
    secret.write_text("secret")
    obstacle(path)
    journal = make()
    for _ in range(2):
        journal.write(a_run())
    journal.close()
    assert complaints == [f"no journal at {path}: {reason}. Training and metrics go on without it."]
    assert secret.read_text() == "secret"
    assert not path.with_name("nothing").exists()


def test_holes_in_a_journal_cost_no_memory(path, make):
    make().write(a_run())
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.truncate(len(whole) + 20 * LONGEST_LINE)
        file.write(b"\n" + whole)
    tracemalloc.start()
    entries = list(read(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [entry.record for entry in entries] == [a_run()] * 2
    assert peak < 4 * LONGEST_LINE


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_a_pipe_named_as_a_journal_is_passed_over(path, make):
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(FileNotFoundError, match="no journal in"):
        list(read(path.parent))
    with pytest.raises(OSError, match="it is not a regular file"):
        read(path)


def test_a_full_journal_takes_no_steps_and_no_short_pauses(path, make):
    journal = make(max_bytes=1)
    journal.write(block(0))
    for number in range(1, 10):
        for record in (block(number), pause(0.0001), pause(0.01), SPAN, ROW):
            journal.write(record)
    journal.close()
    kept = records(path)
    assert [record.step for record in kept if isinstance(record, Steps)] == [(0,)]
    assert {record.seconds for record in kept if isinstance(record, Gc)} == {0.01}
    assert [kept.count(record) for record in (SPAN, ROW, pause(0.01))] == [9] * 3


def test_lines_of_earlier_attempts_count_for_the_limit(path, make):
    for first in (0, 100):
        clock = FakeClock()
        journal = make(max_bytes=200, clock=clock)
        for number in range(first, first + 10):
            clock.sleep(1)
            journal.write(block(number))
        journal.close()
    assert path.stat().st_size < 500


@FORKED
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the test forks a child, and Windows has no os.fork")
def test_a_forked_child_neither_writes_nor_unlocks_the_journal(path, make):
    journal = make()
    journal.write(ROW)
    child = os.fork()
    if child == 0:
        try:
            journal.write(SPAN)
            journal.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    other = make()
    other.write(block(2))
    assert other.path == path.with_name("rank0.2.jsonl")
    journal.close()
    assert records(path) == [ROW]


def test_two_writers_never_share_a_file(path, make, complaints):
    """A lock belongs to an open file, so this is the same in one process and in two."""
    journals = [make() for _ in range(3)]
    for number, journal in enumerate(journals):
        journal.write(block(number))
    names = ["rank0.jsonl", "rank0.2.jsonl", "rank0.3.jsonl"]
    assert [journal.path for journal in journals] == [path.with_name(name) for name in names]
    assert [records(path.with_name(name)) for name in names] == [[block(0)], [block(1)], [block(2)]]
    journals[1].close()
    make().write(block(3))
    assert records(path.with_name(names[1])) == [block(1), block(3)]
    assert complaints == [
        f"another run writes {path}, so this run writes {name} beside it." for name in [*names[1:], names[1]]
    ]


@FORKED
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the test forks a child, and Windows has no os.fork")
def test_a_forked_child_that_lives_longer_holds_neither_file_nor_lock(path, make):
    journal = make()
    journal.write(block(1))
    (alive, go), (begun, begin) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(begin, b".")
        os.read(alive, 1)
        os._exit(0)
    os.read(begun, 1)
    journal.disown()  # as when the parent was killed: nothing is unlocked
    make().write(block(2))
    os.write(go, b".")
    assert os.waitpid(child, 0)[1] == 0
    for end in (alive, go, begun, begin):
        os.close(end)
    assert records(path) == [block(1), block(2)]


def test_a_filesystem_without_locks_takes_records(path, make, complaints, monkeypatch):
    monkeypatch.setattr("fcntl.flock", refuse(errno.ENOTSUP))
    for number in (1, 2):
        make().write(block(number))
    assert (records(path), complaints) == ([block(1), block(2)], [])


def test_a_journal_goes_on_in_the_file_that_it_has_opened(tmp_path, monkeypatch, complaints):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    clock, path = FakeClock(), tmp_path / "rank0.jsonl"
    journal = FileJournal(Path(path.name), max_bytes=999, complain=complaints.append, began=0.0, clock=clock)
    journal.write(block(1))
    monkeypatch.chdir(tmp_path / "elsewhere")
    clock.sleep(1)
    journal.write(block(2))
    assert records(path) == [block(1), block(2)]
    path.unlink()
    clock.sleep(1)
    journal.write(block(3))
    journal.close()
    assert (complaints, [*tmp_path.rglob("*.jsonl")]) == ([], [])


def test_a_record_in_the_midst_of_a_write_follows_it(path, make, monkeypatch):
    """As a collection does that happens there, and another thread."""
    journal = make()
    journal.write(ROW)
    write, within = os.write, [Checklist(item="gc", status="failed"), a_run()]

    def interrupted(file, data):
        if within:
            journal.write(within.pop())
        return write(file, data)

    monkeypatch.setattr(os, "write", interrupted)
    journal.write(RARE[1])
    assert records(path) == [ROW, RARE[1], a_run(), Checklist(item="gc", status="failed")]


def test_closing_in_the_midst_of_a_write_does_not_wait(path, make, monkeypatch):
    journal, write = make(), os.write

    def closing(file, data):
        journal.close()
        return write(file, data)

    monkeypatch.setattr(os, "write", closing)
    journal.write(ROW)
    assert (records(path), descriptors(path)) == ([ROW], [])


def test_threads_that_write_at_once_leave_whole_lines(path, make):
    journal = make()
    journal.write(a_run())

    def work(number):
        for step in range(200):
            journal.write(replace(pause(0.5), step=1000 * number + step))
            journal.flush()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    journal.close()
    assert len(path.read_text().splitlines()) == len(records(path)) == 801
    steps = [record.step for record in records(path)[1:]]
    assert sorted(steps) == [1000 * number + step for number in range(4) for step in range(200)]


@pytest.mark.skipif(
    os.name == "nt", reason="flock is POSIX only: docs/journal.md says that journals are not locked on Windows"
)
def test_a_closed_journal_is_unlocked_though_a_child_has_it_open(path, make):
    """A child that was forked outside of Python closes no journal. A duplicate of the file has the same lock."""
    journal = make()
    journal.write(block(1))
    in_child = os.dup(descriptors(path)[0])
    journal.close()
    following = make()
    following.write(block(2))
    os.close(in_child)
    assert following.path == path
    assert records(path) == [block(1), block(2)]
