"""The public reader of journals."""

from typing import get_args

import pytest

from perf_callbacks import journal
from perf_callbacks.core.codec import Entry, encode
from perf_callbacks.core.records import Steps


def test_a_directory_is_read_rank_by_rank_and_writer_by_writer(tmp_path):
    folder = tmp_path / "out" / "perf_callbacks"
    folder.mkdir(parents=True)
    names = ["rank0.jsonl", "rank0.2.jsonl", "rank0.10.jsonl", "rank2.jsonl", "rank10.jsonl"]
    for number, name in enumerate([*names, "rankless.jsonl", "rank1.jsonl.bak"]):
        (folder / name).write_text(encode(Entry(0.0, Steps(step=(number,), step_time=(0.5,)))) + "\n")
    assert journal.files(tmp_path / "out") == journal.files(folder) == [folder / name for name in names]
    assert [entry.record.step for entry in journal.read(str(tmp_path / "out"))] == [(0,), (1,), (2,), (3,), (4,)]


def test_a_directory_without_a_journal_says_what_was_looked_for(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        journal.read(tmp_path)
    expected = f"no journal in {tmp_path}: a run writes perf_callbacks/rank<k>.jsonl into its output directory"
    assert str(raised.value) == expected


def test_the_public_reader_names_every_record():
    assert {kind.__name__ for kind in get_args(journal.Record)} <= {*journal.__all__}
    assert all(hasattr(journal, name) for name in journal.__all__)
