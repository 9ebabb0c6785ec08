"""A journal that is read while it grows: the same as one that is read anew, with signs of life of its writer."""

import gc
import os
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from fakes import a_run
from journals import a_fit, a_summary, write

from perf_callbacks.kernel.records import followed_journal, interim, journal_ends
from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.fit_records import Steps
from perf_callbacks.kernel.records.followed_journal import FollowedJournals
from perf_callbacks.kernel.records.journal_file import FileJournal
from perf_callbacks.kernel.records.signs_of_life import read_locks, signs

NO_PROCESS = 2**22 + 1
"""Larger than all numbers of processes on Linux."""


def lines(*fits):
    return "".join(encode(entry) + "\n" for fit in fits for entry in fit).encode()


@pytest.fixture(params=[1_000, 3_000, 65_536])
def ends(request, monkeypatch):
    """Bytes that are read at each end of a fit."""
    monkeypatch.setattr(journal_ends, "END_BYTES", request.param)
    monkeypatch.setattr(followed_journal, "END_BYTES", request.param)


def a_long_fit(**run):
    first = a_fit(summary=False, **run)
    return [*first, *[replace(entry, t=entry.t + 20.0 * times) for times in range(1, 9) for entry in first[3:]]]


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("seed", range(8))
def test_pieces_give_the_same_ends_as_the_whole(tmp_path, seed):
    odd, followed = Random(seed), FollowedJournals()
    journal = write(tmp_path, []) / "perf_callbacks/rank0.jsonl"
    parts = [lines(a_long_fit(run_id="a")), lines(a_fit(run_id="b")) + b"rubbish\n\n", lines(a_long_fit(run_id="c"))]
    for run_id, data in zip("abc", [*parts[:2], parts[2][:-7]], strict=True):
        begun, rest = data[:60], data[60:]
        while begun:
            with journal.open("ab") as file:
                file.write(begun)
            if odd.random() < 0.2 or len(begun) == 60:
                interim.write(journal, Entry(odd.random(), a_summary(run_id=run_id)))
            if odd.random() < 0.7:
                whole = followed_journal.read(journal, {})
                assert followed.read(journal, {})[-len(whole) :] == whole
            size = odd.choice([1, 50, 500, 5_000])
            begun, rest = rest[:size], rest[size:]
    assert followed.read(journal, {})[-1].run.run_id == "c"


@pytest.mark.usefixtures("ends")
def test_a_journal_that_is_replaced_or_cut_is_read_anew(tmp_path):
    followed = FollowedJournals()
    journal = write(tmp_path, a_long_fit(run_id="a")) / "perf_callbacks/rank0.jsonl"
    for data in (lines(a_fit(run_id="b")), lines(a_long_fit(run_id="c")), b"rubbish\n", lines(a_long_fit(run_id="d"))):
        followed.read(journal, {})
        journal.write_bytes(data)
        assert followed.read(journal, {}) == followed_journal.read(journal, {})
    journal.unlink()
    with pytest.raises(FileNotFoundError):
        followed.read(journal, {})
    write(tmp_path, a_fit(run_id="e"))
    assert [fit.run.run_id for fit in followed.read(journal, {})] == ["e"]


def test_only_new_bytes_are_read(tmp_path, monkeypatch):
    followed = FollowedJournals()
    journal = write(tmp_path, a_long_fit()) / "perf_callbacks/rank0.jsonl"
    before = followed.read(journal, {})
    monkeypatch.setattr(followed_journal, "EndReader", None)
    assert followed.read(journal, {}) is before
    with journal.open("ab") as file:
        file.write(lines([replace(a_fit()[-3], t=300.0)]))
    assert followed.read(journal, {})[-1].seconds == 300.0
    monkeypatch.setattr(followed_journal, "lines_of", None)
    interim.write(journal, Entry(301.0, a_summary()))
    assert followed.read(journal, {})[-1].seconds == 301.0


@pytest.fixture
def held(tmp_path):
    """The journal of a fit that goes on, and what reads its signs of life: whether a process holds it."""
    followed, journal = FollowedJournals(), write(tmp_path, a_fit(summary=False)) / "perf_callbacks/rank0.jsonl"
    about = journal.stat()
    file = (os.major(about.st_dev), os.minor(about.st_dev), about.st_ino)

    def read(holder=None):
        signs = followed.read(journal, {file: holder} if holder else {})[-1].signs
        return signs.pid, signs.gone

    return journal, read


def test_a_process_that_lets_go_of_its_journal_is_gone(held):
    journal, read = held
    assert [read(), read(NO_PROCESS), read()] == [(None, None), (NO_PROCESS, None), (None, NO_PROCESS)]
    with journal.open("ab") as file:
        file.write(lines([Entry(21.0, a_summary())]))
    assert read() == (None, None)


def test_the_next_attempt_has_no_process_of_the_attempt_before(held):
    journal, read = held
    read(NO_PROCESS)
    with journal.open("ab") as file:
        file.write(lines(a_fit(summary=False, attempt=2, host="another")))
    assert read() == (None, None)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no list of processes")
def test_a_process_that_lives_without_its_lock_is_not_gone(held):
    _, read = held
    assert [read(os.getpid()), read(), read()] == [(os.getpid(), None)] * 3


def records_of_steps():
    gc.collect()
    return sum(type(thing) is Steps for thing in gc.get_objects())


def test_of_a_journal_only_the_last_steps_are_kept(tmp_path):
    followed, before = FollowedJournals(), records_of_steps()
    journal = write(tmp_path, a_long_fit()) / "perf_callbacks/rank0.jsonl"
    for _ in range(3):
        last = followed.read(journal, {})[-1].latest
        assert records_of_steps() - before == sum(isinstance(entry.record, Steps) for entry in last) > 0
        with journal.open("ab") as file:
            file.write(lines(a_long_fit()[3:]))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems list no locks")
def test_an_open_journal_is_locked_by_its_process(tmp_path):
    path = tmp_path / "rank0.jsonl"
    journal = FileJournal(path, max_bytes=10**6, complain=print, began=0.0)
    journal.write(a_run())
    if not read_locks():
        pytest.skip("this machine's /proc/locks is hidden, as in some sandboxes, so no pid can be found")
    assert signs(path.stat(), None, read_locks()).pid == os.getpid()
    journal.close()
    assert signs(path.stat(), None, read_locks()).pid is None


def test_the_newer_of_journal_and_summary_counts(tmp_path):
    path = tmp_path / "rank0.jsonl"
    path.touch()
    os.utime(path, (50.0, 50.0))
    assert signs(path.stat(), None, {}).written_unix == 50.0
    summary = path.with_name("summary0.json")
    summary.touch()
    os.utime(summary, (70.0, 70.0))
    assert signs(path.stat(), summary.stat(), {}).written_unix == 70.0


def test_locks_of_whole_files_are_listed_with_their_holders(tmp_path):
    listed = tmp_path / "locks"
    assert read_locks(listed) == {}
    listed.write_text(
        "1: FLOCK  ADVISORY  WRITE 19873 fe:00:2146612 0 EOF\n"
        "1: -> FLOCK  ADVISORY  WRITE 20000 fe:00:2146612 0 EOF\n"
        "2: POSIX  ADVISORY  WRITE 19797 fe:00:2384076 0 EOF\n"
        "3: FLOCK  ADVISORY  READ 19797 fe:00:2384075 0 EOF\n"
        "1: FLOCK ADVISORY WRITE x y 0 EOF\n\0\n"
    )
    assert read_locks(listed) == {(254, 0, 2146612): 19873}
