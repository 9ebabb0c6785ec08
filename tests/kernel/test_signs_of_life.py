"""Signs of life of a journal's writer."""

import os
import sys

import pytest
from fakes import a_run

from perf_callbacks.kernel.records.journal_file import FileJournal
from perf_callbacks.kernel.records.signs_of_life import read_locks, signs


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
    listed.write_text(
        "1: FLOCK  ADVISORY  WRITE 19873 fe:00:2146612 0 EOF\n"
        "1: -> FLOCK  ADVISORY  WRITE 20000 fe:00:2146612 0 EOF\n"
        "2: POSIX  ADVISORY  WRITE 19797 fe:00:2384076 0 EOF\n"
        "3: FLOCK  ADVISORY  READ 19797 fe:00:2384075 0 EOF\n"
    )
    assert read_locks(listed) == {(254, 0, 2146612): 19873}


def test_locks_that_cannot_be_read_are_unknown(tmp_path):
    listed = tmp_path / "locks"
    assert read_locks(listed) == {}
    for content in ("1: FLOCK ADVISORY WRITE x y 0 EOF\n", "\0\n"):
        listed.write_text(content)
        assert read_locks(listed) == {}
