"""Two ranks that train together: each counts what it does, and what all of them do is the sum."""

import json

import pytest
from counted import counts, known
from forked import ranks, said
from trainings.runs import steps

from perf_callbacks.kernel.records.fit_records import Window
from perf_callbacks.kernel.records.journal_file import read

pytestmark = [pytest.mark.slow]
RANKS = (0, 1)
WINDOW = 5


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Runs a job of some kind once; where its journals are."""
    done = {}

    def run(kind):
        if kind not in done:
            done[kind] = tmp_path_factory.mktemp(kind)
            train(done[kind], kind)
        return done[kind]

    return run


def train(directory, kind):
    imports, window = ("torch._dynamo", "counted_rank"), {"PERF_CALLBACKS_WINDOW": str(WINDOW)}
    words = directory, kind
    with ranks("counted_rank.py", *words, imports=imports, directory=directory, environ=lambda _: window) as job:
        status = [rank.wait(280) for rank in job]
    assert status == [0, 0], said(directory)
    assert not [text for text in said(directory) if "stopped measuring" in text], said(directory)


def truths(directory, rank):
    return json.loads((directory / f"truths{rank}.json").read_text())["truths"]


def windows(directory):
    entries = read(directory / "perf_callbacks" / "rank0.jsonl")
    return [entry.record for entry in entries if isinstance(entry.record, Window)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_each_rank_counts_the_whole_model_on_its_own_batches(job, kind):
    directory = job(kind)
    for rank in RANKS:
        true, found = truths(directory, rank), known(directory, rank=rank)
        assert [flops for flops, right in zip(found, true, strict=True) if flops not in {None, right}] == []
        assert found[WINDOW:] == true[WINDOW:]
        for record in counts(directory, rank=rank):
            assert record.model_flops in true
            assert (record.errors, record.uncounted, record.lower_bound, record.coverage) == ({}, {}, False, 1.0)
    assert truths(directory, 0) != truths(directory, 1)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_what_all_ranks_do_is_the_sum_of_what_each_has_counted(job, kind):
    directory = job(kind)
    by_rank = [steps(directory, rank=rank) for rank in RANKS]
    told = [window for window in windows(directory) if window.first_step > WINDOW]
    assert told
    for window in told:
        mine = [step for rank in by_rank for step in rank if window.first_step <= step["step"] <= window.last_step]
        assert all(step.get("excluded") in {None, "recounted"} for step in mine)
        assert window.model_flops == sum(step["model_flops"] for step in mine)
        assert window.hardware_flops >= window.model_flops


def test_with_tensor_parallelism_a_rank_does_half_and_the_whole_is_known(job):
    directory = job("tensor")
    for rank in RANKS:
        whole = truths(directory, rank)[0]
        for record in counts(directory, rank=rank):
            assert record.model_flops == whole // 2
            assert record.logical_flops == whole
            assert (record.errors, record.uncounted, record.lower_bound) == ({}, {}, False)
        assert known(directory, rank=rank)[-1] == whole // 2
