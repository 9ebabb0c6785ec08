"""The journal on disk, and everything that may happen to a disk."""

import errno
import os

import pytest
from fakes import FakeClock, a_run

from perf_callbacks.core.lines import Entry, attempts
from perf_callbacks.core.records import Gc, Row, Span, Steps
from perf_callbacks.host.journal import FileJournal, NullJournal, read

ROW, SPAN = Row(step=1, metrics={"perf/step_time": 0.5}), Span(kind="evaluation", step=1, start=0.0, seconds=1.0)
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
    journal.write(a_run(from_env=("gc",)))
    clock.sleep(2.5)
    journal.write(ROW)
    journal.close()
    assert list(read(path)) == [Entry(0.0, a_run(from_env=("gc",))), Entry(2.5, ROW)]


def test_records_are_held_back_until_there_are_256_or_a_block_of_steps(path, make):
    journal = make()
    written = []
    for record in [*[ROW] * 256, *[SPAN] * 10, block(1), ROW]:
        journal.write(record)
        written.append(len(records(path)))
    assert written == [0] * 255 + [256] * 11 + [267] * 2
    journal.flush()
    assert len(records(path)) == 268


def test_closing_writes_the_rest_and_closing_twice_is_once(path, make, complaints):
    journal = make()
    journal.write(ROW)
    journal.close()
    journal.close()
    journal.write(ROW)
    journal.flush()
    assert (records(path), complaints) == ([ROW], [])


def test_a_later_attempt_goes_on_in_the_same_file(path, make):
    for number in (1, 2):
        journal = make()
        journal.write(a_run(attempt=number, from_env=("gc",)))
        journal.write(ROW)
        journal.close()
    assert [attempt[0].record.attempt for attempt in attempts(read(path))] == [1, 2]


@pytest.mark.parametrize("torn", [b'{"type":"row","t"', b"\xff\xfe\x00", b'{"type":"row","t":1.0}'])
def test_a_torn_line_costs_itself_only(path, make, torn):
    for _ in range(2):
        journal = make()
        journal.write(ROW)
        journal.close()
        with path.open("ab") as file:
            file.write(torn)
    assert records(path) == [ROW, ROW]


def test_lines_are_written_whole_even_where_the_system_takes_them_in_pieces(path, make, monkeypatch):
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
def test_a_path_that_cannot_be_opened_is_told_once(path, make, complaints, obstacle, reason):
    obstacle(path)
    journal = make()
    assert_gone(journal, path, complaints, reason)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_disk_that_is_read_only_is_told_once(path, make, complaints, monkeypatch, number):
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse(number))
        journal = make()
    assert_gone(journal, path, complaints, os.strerror(number))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_disk_that_is_full_is_told_once_and_keeps_what_it_has(path, make, complaints, monkeypatch, number):
    journal = make()
    journal.write(block(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse(number))
        journal.write(block(2))
    assert_gone(journal, path, complaints, os.strerror(number))
    assert records(path) == [block(1)]


def assert_gone(journal, path, complaints, reason):
    for _ in range(300):
        journal.write(block(3))
    journal.flush()
    journal.close()
    assert journal.path is None
    assert complaints == [f"no journal at {path}: {reason}. Training and metrics go on without it."]


def test_a_full_journal_thins_its_steps_and_short_pauses_and_keeps_the_rest(path, make):
    journal = make(max_bytes=1)
    for number in range(1 + 64 * 3):
        for record in (block(number), pause(0.0001), pause(0.01), SPAN, ROW):
            journal.write(record)
    journal.close()
    kept = records(path)
    assert [record.step for record in kept if isinstance(record, Steps)] == [(0,), (1,), (65,), (129,)]
    assert {record.seconds for record in kept if isinstance(record, Gc)} == {0.01}
    assert [kept.count(record) for record in (SPAN, ROW, pause(0.01))] == [193] * 3


def test_what_earlier_attempts_wrote_counts_for_the_limit(path, make):
    for first in (0, 100):
        journal = make(max_bytes=200)
        for number in range(first, first + 10):
            journal.write(block(number))
        journal.close()
    assert path.stat().st_size < 500


@FORKED
@pytest.mark.timeout(30)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked on this system")
def test_a_forked_child_does_not_write_what_its_parent_holds(path, make):
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
    journal.close()
    assert records(path) == [ROW]


def test_no_journal_takes_everything_and_is_nowhere():
    journal = NullJournal()
    journal.write(ROW)
    journal.flush()
    journal.close()
    assert journal.path is None
