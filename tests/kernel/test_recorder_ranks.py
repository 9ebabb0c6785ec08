"""What two ranks that share their samples, or do not, make of what they did: from the place of a door to its rows."""

import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from fakes import FakeClock
from trainings.runs import records

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.fit.place import Place
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.process.waits import WAITS
from perf_callbacks.kernel.records.fit_records import Run, Window
from perf_callbacks.kernel.records.summary_parts import MemorySummary
from perf_callbacks.kernel.settings.resolution import resolve
from perf_callbacks.ranks import exchange, store as board
from perf_callbacks.report import run_figures

MASK = (torch.arange(8) < 5).long().expand(4, 8)


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """Both ranks of a job, as recorders of one process; what a step takes is told."""
    store, clock, opened = dist.HashStore(), FakeClock(), []
    monkeypatch.setattr(board, "default_store", lambda: store)

    def open_both(data_parallel, ambiguous=None, **config):
        settings = resolve(PerfConfig(window=2, gc="off", **config), {})
        for rank in range(2):
            place = Place(
                integration="loop", directory=tmp_path, device=torch.device("cpu"), rank=rank,
                world_size=2, data_parallel=data_parallel, ambiguous=ambiguous,
            )  # fmt: skip
            others = exchange.meet(place, settings.config) if settings.config.exchange == "on" else None
            opened.append(Recorder(settings, place, ranks=others, clock=clock))
        return opened, clock

    yield open_both
    for recorder in opened:
        recorder.close()


def train(recorders, clock, *, steps):
    for number in steps:
        clock.sleep(1.0)
        for recorder in recorders:
            recorder.batch({"input_ids": torch.ones(4, 8, dtype=torch.long), "attention_mask": MASK})
            recorder.end_step(number)


def until(condition):
    while not condition():  # every test has a time limit
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("data_parallel", "over_all", "per_device"),
    [(1, 4.0, 2.0), (2, 8.0, 4.0), (None, 8.0, 4.0)],
    ids=["tensor parallel", "data parallel", "each its own"],
)
def test_samples_shared_by_ranks_count_once_and_in_part_per_device(
    tmp_path, ranks, data_parallel, over_all, per_device
):
    recorders, clock = ranks(data_parallel)
    train(recorders, clock, steps=range(1, 5))
    until(lambda: all(one.ranks.latest is not None and one.ranks.latest.last_step == 4 for one in recorders))
    for recorder in recorders:
        row = recorder.row(4)
        assert (row["perf/samples_per_second"], row["perf/samples_per_second_per_device"]) == (over_all, per_device)
        assert (row["perf/tokens_per_second"], row["perf/tokens_per_second_per_device"]) == (
            8 * over_all,
            8 * per_device,
        )
    for recorder in recorders:
        recorder.close()
    last = records(tmp_path, Window)[-1]
    assert (last.first_step, last.last_step, last.steps, last.ranks, last.seconds) == (3, 4, 2, 2, 2.0)
    assert (last.samples, last.tokens, last.useful_tokens) == (2 * over_all, 16 * over_all, 10 * over_all)
    assert records(tmp_path, Window, rank=1) == []
    assert len({records(tmp_path, Run, rank=rank)[0].run_id for rank in range(2)}) == 1


def test_there_are_no_rates_of_the_job_if_sharing_of_samples_is_unknown(tmp_path, ranks, caplog):
    recorders, clock = ranks(None, ambiguous="a mesh dimension without a name says nothing")
    train(recorders, clock, steps=range(1, 5))
    until(lambda: all(one.ranks.latest is not None and one.ranks.latest.last_step == 4 for one in recorders))
    row = recorders[0].row(4)
    assert row["perf/step_time"] == 1.0
    assert [key for key in row if "per_second" in key] == []
    for recorder in recorders:
        recorder.close()
    assert recorders[0].summary.samples == 16  # of this rank
    last = records(tmp_path, Window)[-1]
    assert (last.samples, last.tokens, last.useful_tokens) == (None, None, None)
    (warning,) = caplog.messages
    assert warning == (
        "perf_callbacks: rates of the whole job are unknown: a mesh dimension without a name says nothing; "
        "give the number of ranks with their own samples: measure(..., data_parallel=N)."
    )


@pytest.mark.parametrize("data_parallel", [None, 2], ids=["unknown", "given"])
def test_ranks_that_exchange_tensors_in_pairs_may_share_samples(tmp_path, ranks, caplog, data_parallel):
    recorders, clock = ranks(data_parallel)
    for step in range(1, 5):
        WAITS.transfers += 1  # as `dist.send` does
        train(recorders, clock, steps=range(step, step + 1))
    until(lambda: all(one.ranks.latest is not None and one.ranks.latest.last_step == 4 for one in recorders))
    row = recorders[0].row(4)
    for recorder in recorders:
        recorder.close()
    amounts = {(window.samples, window.tokens) for window in records(tmp_path, Window)}
    assert ("perf/samples_per_second_per_device" in row, recorders[0].data_parallel) == (
        bool(data_parallel),
        data_parallel,
    )
    assert (amounts == {(None, None)}) == (data_parallel is None)
    (run,), summary = records(tmp_path, Run), recorders[0].summary
    sharing = replace(summary, memory=MemorySummary(data_parallel=recorders[0].data_parallel))
    assert run_figures.from_records(run, sharing).data_parallel == data_parallel
    assert caplog.text.count("ranks exchange tensors in pairs") == (data_parallel is None)


def test_a_transfer_outside_of_most_steps_leaves_the_rates_known(tmp_path, ranks, caplog):
    recorders, clock = ranks(None)
    train(recorders, clock, steps=range(1, 3))
    WAITS.transfers += 1  # as of a metric
    train(recorders, clock, steps=range(3, 5))
    until(lambda: all(one.ranks.latest is not None and one.ranks.latest.last_step == 4 for one in recorders))
    assert "perf/samples_per_second_per_device" in recorders[0].row(4)
    for recorder in recorders:
        recorder.close()
    assert records(tmp_path, Window)[-1].samples is not None
    assert "rates of the whole job are unknown" not in caplog.text


@pytest.mark.parametrize("exchange", ["on", "off"])
def test_ranks_share_a_directory_that_is_named_after_job_and_run(ranks, tmp_path, monkeypatch, caplog, exchange):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    recorders, _ = ranks(None, output_dir=f"{tmp_path}/{{job}}/{{run}}", exchange=exchange)
    run_id = recorders[0].run.run_id if exchange == "on" else "4711"
    folder = tmp_path / "4711" / run_id / "perf_callbacks"
    assert [recorder.journal_path for recorder in recorders] == [folder / "rank0.jsonl", folder / "rank1.jsonl"]
    assert caplog.text.count("{run} in output_dir is the job's id") == (0 if exchange == "on" else 2)
