"""The ends of each fit in a journal."""

import os

import pytest
from fakes import a_run
from journals import a_fit, a_summary, steps

from perf_callbacks.kernel.records import interim, journal_ends
from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.fit_records import Checklist, Steps
from perf_callbacks.kernel.records.followed_journal import read

LONG = 300
"""Steps of a fit that is longer than what is read of its ends in these tests."""


def text(*records, begin=0.0):
    return "".join(encode(Entry(begin + place, record)) + "\n" for place, record in enumerate(records))


def blocks(last=LONG):
    return [steps(first, first + 9) for first in range(1, last, 10)]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "rank0.jsonl"


@pytest.fixture(params=["whole", "in parts"])
def sizes(request, monkeypatch):
    if request.param == "in parts":
        monkeypatch.setattr(journal_ends, "END_BYTES", 6_000)
        monkeypatch.setattr(journal_ends, "SEARCH_BYTES", 100_000)


def of_run(name, attempt=1, *, ended, last=LONG):
    opening = [a_run(run_id=name, attempt=attempt), Checklist(item="gc", status="applied")]
    return text(*opening, *blocks(last), *([a_summary(run_id=name, attempt=attempt, step=last)] if ended else []))


@pytest.mark.usefixtures("sizes")
def test_both_ends_of_a_fit_are_read(file):
    file.write_text(of_run("a", ended=True))
    [ends] = read(file, {})
    assert (ends.run.run_id, ends.final.step, ends.last_step, ends.unreadable) == ("a", LONG, LONG, 0)
    assert [item.item for item in ends.checklist] == ["gc"]
    assert ends.seconds == 2 + LONG // 10
    assert (ends.signs.written_unix, ends.signs.pid) == (file.stat().st_mtime, None)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("ended", [True, False])
def test_fits_in_the_same_file_are_told_apart(file, ended):
    file.write_text(of_run("a", ended=True) + of_run("b", ended=False) + of_run("c", 1, ended=ended, last=200))
    fits = read(file, {})
    assert [(ends.run.run_id, ends.final is not None) for ends in fits] == [("a", True), ("b", False), ("c", ended)]
    assert [ends.signs is None for ends in fits] == [True, True, False]
    assert [ends.last_step for ends in fits] == [LONG, LONG, 200]


def test_a_search_for_the_beginnings_of_fits_has_a_limit(file, monkeypatch):
    monkeypatch.setattr(journal_ends, "SEARCH_BYTES", 1_000_000)
    monkeypatch.setattr(journal_ends, "MOST_SEARCHED_BYTES", 3_000_000)
    with file.open("wb") as writing:  # the fit was killed, and a hole of 8 TB follows
        writing.write(text(a_run(run_id="a"), steps(1, 10)).encode())
        writing.seek(2**43)
        writing.write(b"\n" + text(steps(11, 20)).encode())
    [ends] = read(file, {})
    assert (ends.run.run_id, ends.final, ends.last_step) == ("a", None, 20)


def test_a_search_for_the_last_line_has_a_limit(file, monkeypatch):
    monkeypatch.setattr(journal_ends, "MOST_SEARCHED_BYTES", 30_000_000)
    with file.open("wb") as writing:  # a hole of 200 MB ends the file, and hides all lines near its end
        writing.write(text(a_run(run_id="a", config={"max_journal_mb": 100}), steps(1, 10)).encode())
        writing.truncate(200_000_000)
    [ends] = read(file, {})
    assert (ends.run.run_id, ends.latest, ends.full) == ("a", (), "")


def test_steps_between_the_ends_are_not_read(file):
    with file.open("wb") as writing:  # its middle is a hole of 8 GB
        writing.write(text(a_run(run_id="a"), steps(1, 10)).encode())
        writing.seek(2**33)
        writing.write(b"\n" + text(steps(11, 20), a_summary(run_id="a")).encode())
    [ends] = read(file, {})
    assert (ends.run.run_id, ends.final.run_id, ends.last_step) == ("a", "a", 20)
    assert [entry.record.step[-1] for entry in ends.latest if isinstance(entry.record, Steps)] == [20]


@pytest.mark.parametrize(("last", "found"), [(100, ["c"]), (LONG, ["c"]), (0, ["a", "b", "c"])])
def test_only_fits_that_begin_near_the_end_are_found(file, monkeypatch, last, found):
    monkeypatch.setattr(journal_ends, "END_BYTES", 6_000)
    monkeypatch.setattr(journal_ends, "SEARCH_BYTES", 15_000 if last else 1_000_000)
    earlier = of_run("a", ended=True) + of_run("b", ended=True, last=1000)
    file.write_text(earlier + of_run("c", ended=True, last=last or 100))
    assert [ends.run.run_id for ends in read(file, {})] == found


@pytest.mark.usefixtures("sizes")
def test_the_summary_beside_the_journal_belongs_to_its_attempt(file):
    file.write_text(of_run("a", ended=True) + of_run("a", 2, ended=False))
    interim.write(file, Entry(99.0, a_summary(run_id="a", attempt=2, step=7)))
    first, second = read(file, {})
    assert (first.so_far, second.so_far.step, second.final) == (None, 7, None)
    assert (second.last_step, second.seconds) == (LONG, 99.0)


def test_a_damaged_summary_beside_the_journal_is_noticed(file):
    file.write_text(of_run("a", ended=False, last=20))
    for content in ("", "{", "[]", '{"type":"run","t":0}', "\0" * 100, "{" * 100_000):
        file.with_name("summary0.json").write_text(content)
        [ends] = read(file, {})
        assert (ends.so_far, ends.damaged_summary, ends.last_step) == (None, True, 20)
    if hasattr(os, "mkfifo"):  # a reader would wait for a pipe
        file.with_name("summary0.json").unlink()
        os.mkfifo(file.with_name("summary0.json"))
        assert read(file, {})[0].damaged_summary


def test_a_line_that_is_being_written_is_no_damage_and_rubbish_is(file):
    whole = of_run("a", ended=False, last=20)
    file.write_text(whole + '{"type":"steps","t":1.0,"st')
    assert read(file, {})[0].unreadable == 0
    file.write_text(whole + "rubbish\n\n{}\n" + text(a_summary(run_id="a")))
    [ends] = read(file, {})
    assert (ends.unreadable, ends.final is not None) == (2, True)


def test_a_line_longer_than_an_end_is_read(file, monkeypatch):
    monkeypatch.setattr(journal_ends, "END_BYTES", 2_000)
    file.write_text(text(a_run(run_id="a"), steps(1, 20), steps(21, 220)))
    assert read(file, {})[0].last_step == 220


def test_a_journal_without_a_run_holds_no_fit(file):
    for content in ("", "\n\n", "rubbish\n", '{"type":"run"}\n', of_run("a", ended=True)[5:]):
        file.write_text(content)
        assert read(file, {}) == []


def test_a_journal_cut_at_any_byte_is_read(file):
    whole = "".join(encode(entry) + "\n" for entry in a_fit()).encode()
    ended = []
    for size in [*range(0, len(whole), 7), len(whole)]:
        file.write_bytes(whole[:size])
        ended += [ends.final is not None for ends in read(file, {})]
    assert ended == sorted(ended)
    assert any(ended)
