"""Ranks of which one is killed, stopped, restarted, or takes no part: the others go on to their end."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from jobs import PROMPT, TESTS, program_environ
from jobs.training_job import TrainingJob
from trainings.runs import records

from perf_callbacks.kernel.records.fit_records import Summary, Window

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes can't be stopped on this system"),
]

DEADLINE = "ranks.rounds.DEADLINE_SECONDS"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_ranks_end_in_any_order_with_or_without_an_open_fit(tmp_path, order):
    """Nor does it matter whether they destroy their process group. Rank 0 holds the store."""
    ends = {0: {}, 1: {"closing": False, "destroying": False}, 2: {"destroying": False}}
    plans = ends if order[0] else {0: {"closing": False}, 1: {}, 2: {"closing": False, "destroying": False}}
    with TrainingJob(tmp_path, world_size=3, plan={"alone": True, "stays": True, "steps": 30}, plans=plans) as job:
        job.until(lambda: all(job.facts(rank).get("done") for rank in range(3)))
        for rank in order:
            job.end(rank)
        job.assert_unharmed(*order, warnings=int(order[0] == 0))  # it takes the store with it, which may be said once


def test_a_rank_that_takes_no_part_or_ends_early_is_missing_from_windows(tmp_path):
    plan = {"alone": True, "steps": 120, "limits": {DEADLINE: 1.0}}
    job = TrainingJob(tmp_path, world_size=3, plan=plan, plans={1: {"measured": False}, 2: {"steps": 40}}).to_its_end()
    job.assert_unharmed(0, warnings=1)  # that no message came from rank 1
    job.assert_unharmed(1, 2)
    job.assert_true(job.windows)
    assert {window.missing_ranks for window in job.windows} == {(1,), (1, 2)}
    assert [window.last_step for window in job.windows if window.missing == 1][-1] <= 40
    assert job.rows
    assert not [row for row in job.rows if "perf/samples_per_second" in row]


def test_windows_go_without_a_killed_rank_and_rank_0_says_so_once(tmp_path):
    plan = {"alone": True, "steps": 200, "limits": {DEADLINE: 1.0}}
    with TrainingJob(tmp_path, world_size=3, plan=plan) as job:
        job.until_step(50, 0, 1, 2)
        job.processes[1].kill()
        job.assert_ended(0, 2)
        job.assert_unharmed(0, warnings=1)
        job.assert_unharmed(2)
    (line,) = job.ours(0)
    assert "no message came from 1 of 3 ranks" in line
    job.assert_true(job.windows)
    dead = [1 in window.missing_ranks for window in job.windows]  # on a busy machine rank 2 may be late for a window
    assert dead == sorted(dead)
    assert {*dead} == {False, True}
    assert [window.last_step for window in job.windows if not window.missing][-1] < 200


@pytest.mark.parametrize("killed", [True, False])
def test_others_go_on_without_rank_0_and_the_store_that_it_held(tmp_path, killed):
    early = {"steps": 1000 if killed else 50, "destroying": False}
    with TrainingJob(tmp_path, world_size=3, plan={"alone": True, "steps": 150}, plans={0: early}) as job:
        job.until_step(50, 1, 2)
        if killed:
            job.processes[0].kill()
        job.assert_ended(1, 2)
        job.assert_unharmed(1, 2, warnings=1)
        assert job.processes[0].wait(PROMPT) == (-signal.SIGKILL if killed else 0)
    assert ["ranks stop exchanging, training goes on" in line for rank in (1, 2) for line in job.ours(rank)] == [
        True
    ] * 2


def test_the_others_go_on_while_a_rank_is_deaf_for_twenty_seconds(tmp_path):
    """In one job rank 0, whose store is as deaf, beyond the other's end; in another rank 1, which then goes on too."""
    with (
        TrainingJob(tmp_path / "0", plan={"alone": True, "steps": 150}) as leaderless,
        TrainingJob(tmp_path / "1", plan={"alone": True, "steps": 1050}, plans={1: {"steps": 60}}) as behind,
    ):
        deaf = [(leaderless, 0), (behind, 1)]
        for job, rank in deaf:
            job.until_step(30, 0, 1)
            job.processes[rank].send_signal(signal.SIGSTOP)
        time.sleep(20)
        assert behind.facts(0)["step"] < 1050
        behind.processes[1].send_signal(signal.SIGCONT)
        leaderless.assert_ended(1)  # while rank 0 is still deaf
        leaderless.processes[0].send_signal(signal.SIGCONT)
        leaderless.assert_ended(0)
        behind.assert_ended()
        leaderless.assert_unharmed(1, warnings=1)
        behind.assert_unharmed(0)
        for job, rank in deaf:
            (summary,) = records(job.directory, Summary, rank=rank)
            assert (summary.steps, summary.failure) == (job.plan_of(rank).steps, None)


def test_ranks_that_were_deaf_beyond_the_deadline_share_their_later_windows(tmp_path):
    """Rank 0 with the store, and then the other one; the steps in which they were stopped are in no window."""
    with TrainingJob(tmp_path, plan={"steps": 200, "limits": {DEADLINE: 2.0}}) as job:
        for step, deaf in {50: 0, 100: 1}.items():
            job.until_step(step, deaf)
            job.processes[deaf].send_signal(signal.SIGSTOP)
            time.sleep(6)
            job.processes[deaf].send_signal(signal.SIGCONT)
        job.assert_ended()
    whole = [window.last_step for window in job.windows if not window.missing]
    assert len(job.windows) - len(whole) <= 2
    assert len(whole) >= 200 // 5 - 6
    assert whole[-1] >= 195
    assert [rank for rank in range(2) if "stop exchanging" in job.errors(rank)] == []


def test_ranks_restarted_by_an_elastic_launcher_exchange_their_own_windows(tmp_path):
    """Rank 1 dies in the first attempt. The launcher has a store per attempt: gloo needs it, see docs/ranks.md."""
    plan = {"directory": str(tmp_path), "alone": True, "dies_at": 35, "limits": {DEADLINE: 60.0}}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, "--max-restarts=1", "--monitor-interval=0.1", str(TESTS / "jobs" / "training.py")]
    environ = program_environ(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", PERF_CALLBACKS_WINDOW="5")
    with (tmp_path / "errors").open("w") as errors:
        launched = subprocess.Popen(
            [*command, json.dumps(plan)],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            status = launched.wait(2 * PROMPT)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(launched.pid, signal.SIGKILL)  # the ranks too
            launched.wait()
    output = (tmp_path / "errors").read_text()
    assert status == 0, output
    windows = records(tmp_path, Window, attempt=-1)
    assert len(windows) >= 10
    assert [(window.last_step, window.missing) for window in windows] == [
        (5 * n, 0) for n in range(1, len(windows) + 1)
    ]
    TrainingJob(tmp_path).assert_true(windows)
    assert "perf_callbacks" not in output.replace(str(TESTS), "")
