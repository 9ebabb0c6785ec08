"""Ranks that train together, through every door: what they say of all of them is true, and nobody waits for anybody."""

import itertools
import signal
import time

import integration_process
import pytest
from jobs import AGREE, NO_WAIT, WINDOW, Job
from metric_keys import needing
from trainings.runs import records, steps

from perf_callbacks.kernel.records.fit_records import Gc, Run, Summary, Window
from perf_callbacks.kernel.records.metric_table import DEVICES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes can't be stopped on this system"),
]

AMOUNTS = ("samples", "tokens", "useful_tokens")


JOBS = {
    "loop": {"door": "loop"},
    "loop that counts FLOPs": {
        "door": "loop",
        "plan": {"flops": "count"},
        "environ": {rank: {"PERF_CALLBACKS_PEAK_TFLOPS": "1"} for rank in range(2)},  # measuring it takes a second
    },
    "loop of three": {
        "door": "loop",
        "world_size": 3,
        "environ": {1: {"PERF_CALLBACKS_WINDOW": "7"}, 2: {"PERF_CALLBACKS_EXCHANGE": "off"}},
    },
    "transformers": {"door": "transformers"},
    "lightning": {"door": "lightning"},
    "accelerate": {"door": "accelerate"},
}


def counts(job):
    return job.plan.get("flops") == "count"


def in_windows(step):
    """A step that was counted for a new shape is one: ranks with shapes of their own would agree on none without it."""
    return step.get("excluded") in {None, "recounted"}


@pytest.fixture(scope="module", params=JOBS)
def job(request, tmp_path_factory):
    """Ranks that trained together, under DDP; of three in a loop, two were told otherwise and obey the first."""
    with Job(tmp_path_factory.mktemp("job"), **JOBS[request.param]) as running:
        running.assert_ended(*range(running.world_size))
        return running


def test_ranks_that_train_together_are_unharmed(job):
    job.assert_unharmed(*range(job.world_size))


def test_ranks_that_train_together_are_one_run(job):
    runs = [records(job.directory, Run, rank=rank) for rank in range(job.world_size)]
    assert [[(run.rank, run.world_size) for run in opened] for opened in runs] == [
        [(rank, job.world_size)] for rank in range(job.world_size)
    ]
    assert len({run.run_id for (run,) in runs}) == 1


def test_a_window_sums_all_ranks_over_the_time_of_the_slowest(job):
    assert len(job.windows) >= 3
    assert {len(records(job.directory, Window, rank=rank)) for rank in range(1, job.world_size)} == {0}
    lasts = [window.last_step for window in job.windows]
    assert lasts == sorted(set(lasts))
    everyone = [steps(job.directory, rank=rank) for rank in range(job.world_size)]
    for window in job.windows:
        assert (window.last_step % WINDOW, window.last_step - window.first_step) == (0, WINDOW - 1)
        numbers = range(window.first_step, window.last_step + 1)
        included = [[step for step in mine if step["step"] in numbers and in_windows(step)] for mine in everyone]
        assert {len(mine) for mine in included} == {window.steps}
        assert window.steps == len({*numbers} - ({1, 2} if counts(job) else {1}))
        assert window.ranks == job.world_size
        slowest = max(sum(step["step_time"] for step in mine) for mine in included)
        assert window.seconds == pytest.approx(slowest, abs=1e-6)
        for amount in ("samples", "tokens"):
            assert getattr(window, amount) == sum(step[amount] for mine in included for step in mine)
        truth = [job.got(rank)[step["step"] - 1] for rank in range(job.world_size) for step in included[rank]]
        assert [getattr(window, amount) for amount in AMOUNTS] == [sum(column) for column in zip(*truth, strict=True)]


def test_each_rank_counts_its_own_flops_and_knows_those_of_all_others(job):
    """Three shapes are enough to know how any other scales. Six per token and weight of the head."""
    for rank in range(job.world_size):
        done = steps(job.directory, rank=rank)
        counted = {step["step"] for step in done if step["excluded"] == "counted"}
        flops = [step.get("model_flops") for step in done[1:]]
        assert counted == ({2} if counts(job) else set())
        assert flops == [6 * tokens * 4 * 64 if counts(job) else None for _, tokens, _ in job.got(rank)[1:]]


def test_what_ranks_get_is_uneven(job):
    """Or sums over them could not be told from multiples of one."""
    first, second = job.got(0), job.got(1)
    assert len(set(first)) > 2
    assert [tokens for _, tokens, _ in first] != [tokens for _, tokens, _ in second]
    assert sum(useful for *_, useful in first) < sum(tokens for _, tokens, _ in first)
    if job.door == "loop":
        for rank in range(job.world_size):
            known = [integration_process.amounts(rank, step) for step in range(1, 61)]
            assert job.got(rank) == [(rows, rows * columns, useful) for rows, columns, useful in known]
    if job.door == "lightning":  # 203 rows are 102 for each, of which the last batch gets two
        assert [samples for samples, *_ in first] == ([4] * 25 + [2]) * 2 + [4] * 8


def test_rows_of_rank_0_have_what_all_ranks_did_in_a_window(job):
    assert job.rows
    told = ["perf/samples_per_second" in row for row in job.rows if "train_runtime" not in row]
    assert sum(told) >= 3
    assert told == sorted(told), "once known, always there"
    for row in [row for row in job.rows if "perf/samples_per_second" in row]:
        over = [window for window in job.windows if window.last_step <= row["step"]]
        said = [row[f"perf/{amount}_per_second"] for amount in AMOUNTS]
        assert any(
            said == pytest.approx([getattr(window, amount) / window.seconds for amount in AMOUNTS], rel=1e-5)
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


def test_lightnings_ranks_each_go_through_their_own_samples(job):
    if job.door == "lightning":
        assert [job.facts(rank)["data_parallel"] for rank in range(2)] == [2, 2]


@pytest.mark.parametrize("door", ["loop", "transformers"])
def test_a_rank_that_is_not_measured_leaves_rank_0_with_its_own_numbers(tmp_path, door):
    with Job(tmp_path, door, own={1: {"measured": False}}) as job:
        job.assert_ended(0, 1)
        job.assert_unharmed(0, 1)
        assert [window for window in job.windows if window.missing_ranks != (1,) or window.samples is not None] == []
        assert job.rows
        assert not [row for row in job.rows if "perf/samples_per_second" in row]


def test_without_rank_0_the_others_wait_five_seconds_once(tmp_path):
    with Job(tmp_path, own={0: {"measured": False}}) as job:
        job.assert_ended(0, 1)
        job.assert_unharmed(1, agree=AGREE + NO_WAIT)
        assert job.facts(1)["enter_seconds"] >= AGREE
        first, *later = job.facts(0)["waits"]  # in DDP, for the other one's first backward
        assert first < AGREE + NO_WAIT
        assert max(later) < NO_WAIT
        assert not (tmp_path / "perf_callbacks" / "rank0.jsonl").exists()


def test_where_rank_0_is_told_to_exchange_nothing_nobody_does(tmp_path):
    with Job(tmp_path, environ={0: {"PERF_CALLBACKS_EXCHANGE": "off"}}) as job:
        job.assert_ended(0, 1)
        job.assert_unharmed(0, 1)
        assert job.windows == []
        assert len({records(tmp_path, Run, rank=rank)[0].run_id for rank in range(2)}) == 1


@pytest.mark.parametrize("victim", [0, 1])
def test_the_other_goes_on_to_its_end_when_a_rank_is_killed(tmp_path, victim):
    other = 1 - victim
    with Job(tmp_path, plan={"alone": True, "steps": 150}) as job:
        job.until_step(50, 0, 1)
        job.processes[victim].kill()
        job.assert_ended(other)
        job.assert_unharmed(other, warnings=other)  # rank 0 takes the store with it, which may be said once
        if other == 0:
            whole = [window for window in job.windows if not window.missing]
            assert whole
            assert whole[-1].last_step < 150
            assert {window.missing_ranks for window in job.windows} <= {(), (1,)}


def test_the_other_goes_on_to_its_end_when_a_rank_ends_earlier(tmp_path):
    with Job(tmp_path, plan={"alone": True, "steps": 120}, own={1: {"steps": 40}}) as job:
        job.assert_ended(0, 1)
        job.assert_unharmed(0, 1)
        whole = [window for window in job.windows if not window.missing]
        assert whole
        assert whole[-1].last_step <= 40
        assert {window.missing_ranks for window in job.windows} == {(), (1,)}


def test_the_other_goes_on_while_a_rank_is_deaf_for_twenty_seconds(tmp_path):
    """In one job rank 0, whose store is as deaf, beyond the other's end; in another rank 1, which then goes on too."""
    with (
        Job(tmp_path / "0", plan={"alone": True, "steps": 150}) as leaderless,
        Job(tmp_path / "1", plan={"alone": True, "steps": 1050}, own={1: {"steps": 60}}) as behind,
    ):
        deaf = [(leaderless, 0), (behind, 1)]
        for job, rank in deaf:
            job.until_step(30, *range(job.world_size))
            job.processes[rank].send_signal(signal.SIGSTOP)
        until = time.monotonic() + 20
        leaderless.assert_ended(1)
        assert time.monotonic() < until
        time.sleep(until - time.monotonic())
        assert behind.facts(0)["step"] < 1050
        for job, rank in deaf:
            job.processes[rank].send_signal(signal.SIGCONT)
        leaderless.assert_ended(0)
        behind.assert_ended(0, 1)
        leaderless.assert_unharmed(1, warnings=1)
        behind.assert_unharmed(0)
        for job, rank in deaf:
            (summary,) = records(job.directory, Summary, rank=rank)
            assert (summary.steps, summary.failure) == (job.plans[rank].steps, None)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_collect_at_steps_of_their_own_unless_the_counter_says_when(tmp_path, world_size):
    """They keep different numbers of objects, as ranks do that read different data."""
    everyone = range(world_size)

    def collections(gc):
        environ = {"PERF_CALLBACKS_GC": gc, "PERF_CALLBACKS_GC_INTERVAL": "10"}
        with Job(
            tmp_path / gc,
            world_size=world_size,
            plan={"step_seconds": 0.001},
            own={rank: {"kept": 1500 + 300 * rank} for rank in everyone},
            environ=dict.fromkeys(everyone, environ),
        ) as job:
            job.assert_ended(*everyone)
            job.assert_unharmed(*everyone)
            found = [records(job.directory, Gc, rank=rank) for rank in everyone]
        return [[(one.step, one.generation, one.automatic) for one in mine if one.step > 2] for mine in found]

    observed = collections("observe")
    assert all(automatic for mine in observed for *_, automatic in mine)
    longer = [{step for step, generation, _ in mine if generation} for mine in observed]
    assert min(map(len, longer)) > 5
    assert all(one - other for one, other in itertools.permutations(longer, 2))

    assert collections("sync") == [[(step, 1, False) for step in range(10, 61, 10)]] * world_size
