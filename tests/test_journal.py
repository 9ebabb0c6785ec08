"""The public reader of journals."""

from dataclasses import replace
from typing import get_args

import pytest
from fakes import a_run
from journals import a_fit, a_summary, write

from perf_callbacks import journal
from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.fit_records import Row, Steps
from perf_callbacks.kernel.records.summary_parts import CpuSummary


def test_a_directory_is_read_rank_by_rank_and_writer_by_writer(tmp_path):
    folder = tmp_path / "out" / "perf_callbacks"
    folder.mkdir(parents=True)
    names = ["rank0.jsonl", "rank0.2.jsonl", "rank0.10.jsonl", "rank2.jsonl", "rank10.jsonl"]
    for number, name in enumerate([*names, "rankless.jsonl", "rank1.jsonl.bak"]):
        (folder / name).write_text(encode(Entry(0.0, Steps(step=(number,), step_time=(0.5,)))) + "\n")
    assert journal.files(tmp_path / "out") == journal.files(folder) == [folder / name for name in names]
    assert [entry.record.step for entry in journal.read(str(tmp_path / "out"))] == [(0,), (1,), (2,), (3,), (4,)]


def test_a_directory_without_a_journal_names_the_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        journal.read(tmp_path)
    expected = f"no journal in {tmp_path}: a run writes perf_callbacks/rank<k>.jsonl into its output directory"
    assert str(raised.value) == expected


def test_the_public_reader_names_every_record():
    assert {kind.__name__ for kind in get_args(journal.Record)} <= {*journal.__all__}
    assert all(hasattr(journal, name) for name in journal.__all__)


def test_the_columns_have_a_value_for_each_step_of_each_rank(tmp_path):
    first = [a_run(), Steps(step=(1, 2), step_time=(0.5, None), excluded=("first", None)), Row(step=2, metrics={})]
    again = [a_run(attempt=2, step=1), Steps(step=(2,), step_time=(0.25,), data_time=(0.125,))]
    other = [a_run(rank=1), Steps(step=(1,), step_time=(0.75,))]
    headless = [Steps(step=(9,), step_time=(1.0,))]
    for name, records in {"rank0": first + again, "rank1": other, "rank2": headless}.items():
        lines = "".join(encode(Entry(0.0, record)) + "\n" for record in records)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    found = journal.columns(tmp_path)
    assert {len(values) for values in found.values()} == {5}
    assert found["rank"] == [0, 0, 0, 1, None]
    assert found["attempt"] == [1, 1, 2, 1, None]
    assert found["step"] == [1, 2, 2, 1, 9]
    assert found["step_time"] == [0.5, None, 0.25, 0.75, 1.0]
    assert found["data_time"] == [None, None, 0.125, None, None]
    assert found["excluded"] == ["first", None, None, None, None]


def test_the_runs_below_a_directory_have_a_record_each(tmp_path):
    load = CpuSummary(cpus=4, no_cpu_share=0.25, other_cpus=1.0, idle_cpus=2.0, load_average=3.5)
    for name, seconds in {"old": 4.5, "new": 9.0}.items():
        summary = a_summary(run_id=name, included_seconds=seconds)
        fit = [*a_fit(summary=False, run_id=name, started_unix=seconds, batch=4, versions={"torch": "2.13"})]
        write(tmp_path / name, [*fit, Entry(20.0, replace(summary, cpu=load))])
    old, new = journal.runs(tmp_path)
    assert (old["run_id"], old["step_seconds"], new["step_seconds"]) == ("old", 0.25, 0.5)
    assert (old["data_time"], old["gc_time"], old["samples_per_second"]) == (0.0625, None, 16.0)
    assert (old["version_torch"], old["batch"], old["state"], old["cause"]) == ("2.13", 4, "ended", "data")
    assert (old["no_cpu_share"], old["others_share"], old["idle_share"], old["load_average"]) == (0.25, 0.25, 0.5, 3.5)
    assert old["directory"] == str(tmp_path / "old")
    assert {*map(type, old.values())} <= {str, int, float, type(None)}
    (one,) = journal.runs(next((tmp_path / "old").rglob("rank0.jsonl")))
    assert one["run_id"] == "old"


def test_a_run_that_was_killed_has_a_record_without_figures(tmp_path):
    write(tmp_path, a_fit(summary=False))
    ((run_id, steps, seconds),) = [(one["run_id"], one["steps"], one["step_seconds"]) for one in journal.runs(tmp_path)]
    assert (run_id, steps, seconds) == ("a1", 0, None)


@pytest.mark.parametrize("value", [-1.0, 1e300])
def test_figures_that_no_run_has_are_unknown(tmp_path, value):
    load = CpuSummary(cpus=-1, no_cpu_share=value, other_cpus=value, idle_cpus=value, load_average=value)
    summary = replace(a_summary(included_seconds=value, stage_seconds={"data_time": value, "mine": 1.0}), cpu=load)
    write(tmp_path, [*a_fit(summary=False), Entry(20.0, summary)])
    (found,) = journal.runs(tmp_path)
    known = ("step_seconds", "data_time", "samples_per_second", "no_cpu_share", "others_share", "load_average")
    assert {found[name] for name in known} == {None}


def test_a_machine_with_more_than_a_million_cpus_is_unknown(tmp_path):
    for cpus, share in ((4, 0.25), (10**7, None)):
        summary = replace(a_summary(), cpu=CpuSummary(cpus=cpus, other_cpus=1.0))
        write(tmp_path, [*a_fit(summary=False), Entry(20.0, summary)])
        assert journal.runs(tmp_path)[0]["others_share"] == share
