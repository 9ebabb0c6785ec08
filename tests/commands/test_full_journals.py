"""A journal that is full, and lacks steps: each command says which steps it has."""

import json
import os

import pytest
from fakes import FakeClock, a_run
from journals import Outline, a_summary, steps
from recorded import NOW, stand_still

from perf_callbacks.commands import main
from perf_callbacks.kernel.records import interim
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Row
from perf_callbacks.kernel.records.journal_file import FileJournal

BLOCK, BLOCKS = 256, 100
LAST = BLOCK * BLOCKS


def full(directory, *, ended, rows=0):
    """A run of 25,600 steps, and the number of its steps that found room in a journal of one megabyte.

    `rows`: bytes of the records after the last step.
    """
    clock, path, complaints = FakeClock(0.0), directory / "perf_callbacks/rank0.jsonl", []
    journal = FileJournal(path, max_bytes=1_000_000, complain=complaints.append, began=0.0, clock=clock)
    journal.write(a_run(config={"max_journal_mb": 1}, started_unix=NOW - 6400.0))
    for number in range(BLOCKS):
        clock.sleep(BLOCK * 0.25)
        journal.write(steps(1 + number * BLOCK, (number + 1) * BLOCK))
    while rows > 0:
        journal.write(row := Row(step=LAST, metrics={"loss" * 1000: 0.0}))
        rows -= len(repr(row))
    summary = a_summary(step=LAST, steps=LAST, included_steps=LAST)
    if ended:
        journal.write(summary)
    journal.close()
    interim.write(path, Entry(clock.now, summary))
    for file in path.parent.iterdir():
        os.utime(file, (NOW - 5.0, NOW - 5.0))
    (complaint,) = complaints
    assert (
        complaint == f"the journal {path} is full (max_journal_mb): it gets no more steps. Metrics and summary go on."
    )
    (*_, last) = (line for line in path.read_text().splitlines() if line.startswith('{"type":"steps"'))
    return json.loads(last)["step"][-1]


@pytest.fixture(autouse=True)
def still(monkeypatch):
    stand_still(monkeypatch)


def printed(capsys, *words, statuses=(0,)):
    assert main([*map(str, words)]) in statuses
    streams = capsys.readouterr()
    return " ".join(streams.out.split()), " ".join(streams.err.split())


@pytest.mark.parametrize("ended", [True, False])
def test_each_command_says_which_steps_of_a_full_journal_it_has(tmp_path, capsys, ended):
    recorded = full(tmp_path, ended=ended)
    assert 2 * BLOCK < recorded < LAST - 2 * BLOCK
    sentence = f"the journal is full (max_journal_mb), and has no steps after step {recorded:,}"
    for command in ("show", "watch", "runs"):
        assert sentence in printed(capsys, command, tmp_path)[0], command
    counted = (
        f"rank 0's journal was full (max_journal_mb): it has {recorded:,} of {LAST:,} steps, up to step {recorded:,}"
    )
    assert f"{tmp_path}: {counted}" in printed(capsys, "compare", tmp_path, tmp_path)[1]
    assert f"{tmp_path}: {counted}" in printed(capsys, "scaling", tmp_path, statuses=(0, 2))[1]
    printed(capsys, "report", tmp_path)
    notes = json.loads(Outline((tmp_path / "perf_callbacks/report.html").read_text()).data)["notes"]
    assert f"R{counted[1:]}. The charts show no other steps." in notes
    lacking = f"{LAST - recorded:,} steps are in no journal, which was full (max_journal_mb)"
    assert lacking in printed(capsys, "goodput", tmp_path)[0]


def test_a_full_journal_whose_end_has_no_steps_says_so(tmp_path, capsys):
    full(tmp_path, ended=True, rows=100_000)
    for command in ("show", "watch", "runs"):
        text = printed(capsys, command, tmp_path)[0]
        assert "the journal is full (max_journal_mb), and lacks the last steps" in text, command
