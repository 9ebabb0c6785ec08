"""The ledger of runs: lines of several processes, foreign lines, and lines beyond the limit."""

import json
import os
import sys
from threading import Thread

import msgspec
import pytest
from fakes import a_run
from rows import each_row

from perf_callbacks.baseline import ledger
from perf_callbacks.baseline.ledger import LedgerLine
from perf_callbacks.kernel.records import journal_file
from perf_callbacks.report.run_figures import RunFigures


def a_line(key="k", run_id="a1", *, early=True, **run):
    figures = RunFigures(run_id=run_id, step_seconds=0.1, **run)
    return LedgerLine(key=key, run=figures, early=figures if early else None)


def test_twenty_runs_of_three_programs_each_have_the_last_five_of_their_own(tmp_path):
    file = tmp_path / "runs.jsonl"
    keys = {name: ledger.key(a_run(program=f"{name}.py", directory="/w", model="Llama")) for name in "abc"}
    for number in range(20):
        for name, key in keys.items():
            ledger.append(a_line(key, f"{name}{number}"), file)
    lines = ledger.read(file)
    assert (len(lines), len({*keys.values()})) == (60, 3)
    for name, key in keys.items():
        found = ledger.last(lines, key, 5, besides="none")
        assert [line.run.run_id for line in found] == [f"{name}{number}" for number in range(15, 20)]


def test_short_runs_earlier_attempts_and_the_run_itself_do_not_count(tmp_path):
    lines = [
        a_line(run_id="old"),
        a_line(run_id="short", early=False),
        a_line(run_id="now"),
        a_line(run_id="old", attempt=2),
    ]
    assert [line.run.attempt for line in ledger.last(lines, "k", 5, besides="now")] == [2]


@each_row("changed", [{"model": "Mistral"}, {"parameters": 7}, {"batch": 2}, {"device": "cuda"}, {"world_size": 2}])
def test_another_model_batch_or_device_is_another_program(changed):
    assert ledger.key(a_run(program="a.py")) != ledger.key(a_run(program="a.py", **changed))


def test_a_program_is_known_by_its_file_wherever_it_starts():
    one = ledger.key(a_run(program="train.py", directory="/w/jobs"))
    assert one == ledger.key(a_run(program="/w/jobs/train.py", directory="/elsewhere", run_id="b2"))


HOSTILE = [
    b"",
    b"{}",
    b"null",
    b"[" * 10_000,
    b'{"key":"k","run":{"run_id":7}}',
    b'{"key":"k","run":{"run_id":"a","step_seconds":"1"}}',
    b'{"key":"k","run":{"run_id":"a","step_seconds":1e999}}',
    b"\xff\xfe\x00",
    b"x" * 30_000,
]


@pytest.mark.parametrize("line", HOSTILE)
def test_foreign_lines_are_skipped(tmp_path, line):
    file = tmp_path / "runs.jsonl"
    ledger.append(a_line(), file)
    with file.open("ab") as opened:
        opened.write(line + b"\n")
    ledger.append(a_line(run_id="b2"), file)
    assert [one.run.run_id for one in ledger.read(file)] == ["a1", "b2"]


def test_a_torn_line_spoils_no_other_line(tmp_path):
    file = tmp_path / "runs.jsonl"
    ledger.append(a_line(), file)
    file.write_bytes(file.read_bytes() + b'{"key":"k","ti')
    ledger.append(a_line(run_id="b2"), file)
    assert [one.run.run_id for one in ledger.read(file)] == ["a1", "b2"]


def test_unknown_keys_of_a_newer_version_are_dropped(tmp_path):
    file = tmp_path / "runs.jsonl"
    found = msgspec.to_builtins(a_line())
    file.write_text(json.dumps({**found, "colour": "red", "run": {**found["run"], "colour": 1}}) + "\n")
    assert ledger.read(file) == [a_line()]


def test_a_full_ledger_keeps_the_newest_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "MOST_BYTES", 20_000)
    monkeypatch.setattr(ledger, "MOST_LINES", 10)
    file = tmp_path / "runs.jsonl"
    for number in range(200):
        ledger.append(a_line(run_id=str(number)), file)
    found = [int(line.run.run_id) for line in ledger.read(file)]
    assert found == [*range(found[0], 200)]
    assert file.stat().st_size <= 20_000
    assert [path.name for path in tmp_path.iterdir()] == ["runs.jsonl"]


@pytest.mark.skipif(sys.platform == "win32", reason="flock is POSIX only; on Windows the ledger is not locked")
def test_a_single_process_shortens_the_ledger(tmp_path, monkeypatch):
    file = tmp_path / "runs.jsonl"
    ledger.append(a_line(), file)
    monkeypatch.setattr(ledger, "MOST_BYTES", 1)
    monkeypatch.setattr(ledger, "MOST_LINES", 1)
    with journal_file.opened(file) as other:
        assert journal_file.lock(other)
        ledger.append(a_line(run_id="b2"), file)
    assert len(file.read_text().splitlines()) == 2
    ledger.append(a_line(run_id="c3"), file)
    assert [json.loads(line)["run"]["run_id"] for line in file.read_text().splitlines()] == ["b2", "c3"]


def test_writers_at_once_lose_no_line(tmp_path):
    file = tmp_path / "runs.jsonl"

    def write(name):
        for number in range(25):
            ledger.append(a_line(run_id=f"{name}{number}"), file)

    writers = [Thread(target=write, args=(name,)) for name in "abcd"]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert {line.run.run_id for line in ledger.read(file)} == {
        f"{name}{number}" for name in "abcd" for number in range(25)
    }


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes, on which a reader would wait")
def test_a_pipe_or_a_link_is_no_ledger(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "target")
    for file in (pipe, link):
        assert ledger.read(file) == []
        with pytest.raises(OSError, match=r"."):
            ledger.append(a_line(), file)
    assert not (tmp_path / "target").exists()


def test_a_line_that_is_too_long_is_not_written(tmp_path):
    file = tmp_path / "runs.jsonl"
    ledger.append(a_line(program="x" * 30_000), file)
    assert not file.exists()


def test_a_link_to_a_large_file_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "MOST_BYTES", 1)
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("x" * 100)
    link.symlink_to(target)
    with pytest.raises(OSError, match=r"."):
        ledger.append(a_line(), link)
    assert link.is_symlink()
    assert target.read_text() == "x" * 100
