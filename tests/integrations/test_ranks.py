"""Ranks that train together, through every door: what they say of all of them is true, and no rank waits."""

import itertools
import signal

import pytest
from jobs.training import amounts
from jobs.training_job import AGREE, NO_WAIT, WINDOW, TrainingJob
from metric_keys import needing
from trainings.runs import records, steps

from perf_callbacks.kernel.records.fit_records import Gc, Run, Window
from perf_callbacks.kernel.records.metric_table import DEVICES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes can't be stopped on this system"),
]

AMOUNTS = ("samples", "tokens", "useful_tokens")


JOBS = {
    "loop that counts FLOPs": {
        "plan": {"flops": "count"},
        "environ": {"PERF_CALLBACKS_PEAK_TFLOPS": "1"},  # measuring it takes a second
    },
    "loop of three": {
        "world_size": 3,
        "environs": {1: {"PERF_CALLBACKS_WINDOW": "7"}, 2: {"PERF_CALLBACKS_EXCHANGE": "off"}},
    },
    "transformers": {"door": "transformers"},
    "lightning": {"door": "lightning"},
    "accelerate": {"door": "accelerate"},
}


def counts(job):
    return job.plan_of(0).flops == "count"


def in_windows(step):
    """A step that was counted for a new shape is one: ranks with shapes of their own would agree on none without it."""
    return step.get("excluded") in {None, "recounted"}


@pytest.fixture(scope="module", params=JOBS)
def job(request, tmp_path_factory):
    """Ranks that trained together, under DDP; of three in a loop, two were told otherwise and obey the first."""
    return TrainingJob(tmp_path_factory.mktemp("job"), **JOBS[request.param]).to_its_end()


def test_ranks_that_train_together_are_unharmed(job):
    job.assert_unharmed(*range(job.world_size))


def test_ranks_that_train_together_are_a_single_run(job):
    runs = [records(job.directory, Run, rank=rank) for rank in range(job.world_size)]
    assert [[(run.rank, run.world_size) for run in opened] for opened in runs] == [
        [(rank, job.world_size)] for rank in range(job.world_size)
    ]
    assert len({run.run_id for (run,) in runs}) == 1
    assert [run.data_parallel for (run,) in runs] == [job.world_size] * job.world_size


def test_a_window_sums_all_ranks_over_the_time_of_the_slowest(job):
    assert len(job.windows) >= 3
    assert {len(records(job.directory, Window, rank=rank)) for rank in range(1, job.world_size)} == {0}
    lasts = [window.last_step for window in job.windows]
    assert lasts == sorted(set(lasts))
    by_rank = [steps(job.directory, rank=rank) for rank in range(job.world_size)]
    for window in job.windows:
        assert (window.last_step % WINDOW, window.last_step - window.first_step) == (0, WINDOW - 1)
        numbers = range(window.first_step, window.last_step + 1)
        included = [[step for step in own if step["step"] in numbers and in_windows(step)] for own in by_rank]
        assert {len(own) for own in included} == {window.steps}
        assert window.steps == len({*numbers} - ({1, 2} if counts(job) else {1}))
        assert window.ranks == job.world_size
        slowest = max(sum(step["step_time"] for step in own) for own in included)
        assert window.seconds == pytest.approx(slowest, abs=1e-6)
        for amount in ("samples", "tokens"):
            assert getattr(window, amount) == sum(step[amount] for own in included for step in own)
        truth = [job.got(rank)[step["step"] - 1] for rank in range(job.world_size) for step in included[rank]]
        assert [getattr(window, amount) for amount in AMOUNTS] == [sum(column) for column in zip(*truth, strict=True)]


def test_each_rank_counts_its_own_flops_and_scales_them(job):
    """Three shapes are enough to know how any other scales. Six per token and weight of the head."""
    for rank in range(job.world_size):
        done = steps(job.directory, rank=rank)
        counted = {step["step"] for step in done if step["excluded"] == "counted"}
        flops = [step.get("model_flops") for step in done[1:]]
        assert counted == ({2} if counts(job) else set())
        assert flops == [6 * tokens * 4 * 64 if counts(job) else None for _, tokens, _ in job.got(rank)[1:]]


def test_batches_of_ranks_are_uneven(job):
    """Or sums over them could not be told from multiples of one."""
    first, second = job.got(0), job.got(1)
    assert len(set(first)) > 2
    assert [tokens for _, tokens, _ in first] != [tokens for _, tokens, _ in second]
    assert sum(useful for *_, useful in first) < sum(tokens for _, tokens, _ in first)
    if job.door == "loop":
        for rank in range(job.world_size):
            truth = [amounts(rank, step) for step in range(1, 61)]
            assert job.got(rank) == [(rows, rows * columns, useful) for rows, columns, useful in truth]
    if job.door == "lightning":  # 203 rows are 102 for each, of which the last batch gets two
        assert [samples for samples, *_ in first] == ([4] * 25 + [2]) * 2 + [4] * 8


def test_rows_of_rank_0_have_the_rates_of_all_ranks(job):
    assert job.rows
    with_rates = ["perf/samples_per_second" in row for row in job.rows if "train_runtime" not in row]
    assert sum(with_rates) >= 3
    assert with_rates == sorted(with_rates), "once known, always there"
    for row in [row for row in job.rows if "perf/samples_per_second" in row]:
        over = [window for window in job.windows if window.last_step <= row["step"]]
        rates = [row[f"perf/{amount}_per_second"] for amount in AMOUNTS]
        assert any(
            rates == pytest.approx([getattr(window, amount) / window.seconds for amount in AMOUNTS], rel=1e-5)
            for window in over
        ), row
    for row in job.rows:
        assert needing(DEVICES) <= row.keys()


def test_the_row_of_a_whole_run_has_the_rates_of_all_its_steps(job):
    whole = [row for row in job.facts(0)["rows"] if "train_runtime" in row]
    assert len(whole) == (job.door == "transformers")
    for row in whole:
        included = [step for step in steps(job.directory, rank=0) if step["excluded"] is None]
        seconds = sum(step["step_time"] for step in included)
        for amount in ("samples", "tokens"):
            rate = sum(step[amount] for step in included) / seconds
            assert row[f"perf/run/{amount}_per_second_per_device"] == pytest.approx(rate, rel=1e-4)
        assert not {f"perf/run/{amount}_per_second" for amount in AMOUNTS} & row.keys()


def test_without_rank_0_the_others_wait_five_seconds_once(tmp_path):
    job = TrainingJob(tmp_path, plans={0: {"measured": False}}).to_its_end()
    job.assert_unharmed(1, agree=AGREE + NO_WAIT)
    assert job.facts(1)["enter_seconds"] >= AGREE
    first, *later = job.facts(0)["waits"]  # in DDP, for the other one's first backward
    assert first < AGREE + NO_WAIT
    assert max(later) < NO_WAIT
    assert not (tmp_path / "perf_callbacks" / "rank0.jsonl").exists()


def test_ranks_collect_at_steps_of_their_own_unless_the_counter_says_when(tmp_path):
    """They keep different numbers of objects, as ranks do that read different data."""

    def collections(gc):
        job = TrainingJob(
            tmp_path / gc,
            plan={"step_seconds": 0.001},
            plans={rank: {"kept": 1500 + 300 * rank} for rank in range(2)},
            environ={"PERF_CALLBACKS_GC": gc, "PERF_CALLBACKS_GC_INTERVAL": "10"},
        ).to_its_end()
        job.assert_unharmed(0, 1)
        by_rank = [records(job.directory, Gc, rank=rank) for rank in range(2)]
        return [[(gc.step, gc.generation, gc.automatic) for gc in own if gc.step > 2] for own in by_rank]

    observed = collections("observe")
    assert all(automatic for own in observed for *_, automatic in own)
    longer = [{step for step, generation, _ in own if generation} for own in observed]
    assert min(map(len, longer)) > 5
    assert all(own - other for own, other in itertools.permutations(longer, 2))

    assert collections("sync") == [[(step, 1, False) for step in range(10, 61, 10)]] * 2
