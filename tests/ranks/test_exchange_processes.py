"""Ranks in processes of their own, with everything that may happen to one of them: the others go on and end."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict

import pytest
from forked import start
from launching import TESTS, free_port, program_environ
from rank_process import Plan, samples

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes can't be stopped on this system"),
]

PROMPT = 60.0
"""Seconds within which a process that may end has ended, on a busy machine."""
NO_WAIT = 4.0
"""Fewer seconds than a wait for another rank takes: on a busy machine, a thread may get no CPU for one."""


class Processes:
    """The ranks of a job. Whatever happens, none outlives its test."""

    def __init__(self, directory):
        self.directory = directory
        self.processes = []

    def start(self, world_size, *changes, **plan):
        port = free_port()
        for rank in range(world_size):
            own = dict(changes).get(rank, {})
            chosen = Plan(directory=str(self.directory), port=port, rank=rank, world_size=world_size, **{**plan, **own})
            errors = self.directory / f"rank{rank}.err"
            options = {"imports": ("rank_process",), "environ": {}, "output": errors, "errors": errors}
            self.processes.append(start("rank_process.py", json.dumps(asdict(chosen)), **options))
        self.until(lambda: all(self.facts(rank).get("step") for rank in range(world_size)))

    def facts(self, rank):
        path = self.directory / f"rank{rank}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def errors(self, rank):
        """What it said, without what gloo says of every group."""
        lines = (self.directory / f"rank{rank}.err").read_text().splitlines()
        return [line for line in lines if "[Gloo]" not in line]

    def until(self, condition, seconds=60.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, [self.facts(rank) for rank in range(len(self.processes))]
            time.sleep(0.02)

    def until_done(self, *ranks):
        self.until(lambda: all(self.facts(rank).get("done") for rank in ranks))

    def signal(self, rank, number):
        self.processes[rank].send_signal(number)

    def end(self, *ranks):
        """Let some ranks end; their exit codes."""
        for rank in ranks:
            (self.directory / f"end{rank}").touch()
        return [self.processes[rank].wait(PROMPT) for rank in ranks]

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def assert_nobody_waited(self, *ranks, agree=4.0):
        for rank in ranks:
            facts = self.facts(rank)
            assert facts["agree_seconds"] < agree
            assert facts["longest_call"] < NO_WAIT
            assert facts["longest_step"] < NO_WAIT


@pytest.fixture
def job(tmp_path):
    processes = Processes(tmp_path)
    yield processes
    processes.kill()


def whole(world_size, window, length=10, step_seconds=0.01):
    steps = range(window * length + 1, (window + 1) * length + 1)
    amount = sum(samples(rank, step) for rank in range(world_size) for step in steps)
    return {
        "first_step": steps[0],
        "last_step": steps[-1],
        "steps": length,
        "ranks": world_size,
        "missing": 0,
        "missing_ranks": [],
        "seconds": length * step_seconds,
        "samples": amount,
        "tokens": amount * 16,
        "useful_tokens": amount * 9,
        "model_flops": amount * 600,
        "hardware_flops": amount * 800,
        "asks": {},
        "holds": {},
        "job": {},
        "by_rank": {},
    }


def lacking(world_size, window, *missing):
    """The window without some ranks. The others take the same time."""
    unknown = dict.fromkeys(("samples", "tokens", "useful_tokens", "model_flops", "hardware_flops"))
    return whole(world_size, window) | unknown | {"missing": len(missing), "missing_ranks": [*missing]}


def assert_true(windows, world_size, gone=None):
    """What is said of windows is what happened, each is said once, and in order. `gone` is a rank that may be missing.

    Returns the number of windows that were whole.
    """
    numbers = [window["last_step"] // 10 - 1 for window in windows]
    assert numbers == sorted(set(numbers))
    said = [
        lacking(world_size, number, gone) if window["missing"] and gone is not None else whole(world_size, number)
        for number, window in zip(numbers, windows, strict=True)
    ]
    assert windows == said
    return sum(not window["missing"] for window in windows)


@pytest.mark.parametrize("destroying", [True, False])
@pytest.mark.parametrize("closing", [True, False])
@pytest.mark.parametrize("world_size", [2, 3])
def test_all_ranks_know_the_truth_and_end_quietly(job, world_size, closing, destroying):
    everyone = range(world_size)
    job.start(world_size, (1, {"window": 7}), closing=closing, destroying=destroying)
    job.until_done(*everyone)
    assert job.end(*everyone) == [0] * world_size
    assert [job.facts(rank)["latest"] for rank in everyone] == [whole(world_size, 9)] * world_size
    assert {job.facts(rank)["run_id"] for rank in everyone} == {"run0"}
    assert_true(job.facts(0)["taken"], world_size)
    assert len(job.facts(0)["taken"]) > 5
    assert [job.errors(rank) for rank in everyone] == [[]] * world_size
    job.assert_nobody_waited(*everyone)


@pytest.mark.parametrize("closing", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_ranks_may_end_in_any_order(job, order, closing):
    job.start(3, steps=30, closing=closing)
    job.until_done(*order)
    assert [job.end(rank) for rank in order] == [[0]] * 3
    assert [job.errors(rank) for rank in order] == [[]] * 3


def test_a_rank_that_does_not_take_part_is_missing_from_windows(job):
    job.start(3, (1, {"exchanging": False}), steps=200)
    job.until(lambda: all(job.facts(rank)["step"] == 200 for rank in range(3)))
    assert job.end(0, 1, 2) == [0, 0, 0]
    assert assert_true(job.facts(0)["taken"], 3, gone=1) == 0
    assert job.facts(0)["latest"]["missing_ranks"] == [1]
    assert [job.errors(rank) for rank in range(3)] == [[]] * 3
    job.assert_nobody_waited(0, 2)


def test_without_rank_0_the_others_wait_five_seconds_once(job):
    job.start(3, (0, {"exchanging": False}), steps=200)
    job.until(lambda: all(job.facts(rank)["step"] == 200 for rank in range(3)))
    assert job.end(0, 1, 2) == [0, 0, 0]
    assert [job.facts(rank)["run_id"] for rank in (1, 2)] == [None, None]
    assert all(job.facts(rank)["agree_seconds"] >= 5 for rank in (1, 2))
    assert [job.errors(rank) for rank in range(3)] == [[]] * 3
    job.assert_nobody_waited(1, 2, agree=6.0)


def test_a_rank_that_is_killed_does_not_keep_the_others_from_going_on(job):
    job.start(3, steps=300)
    job.until(lambda: job.facts(0)["step"] > 100)
    job.signal(1, signal.SIGKILL)
    job.until(lambda: all(job.facts(rank)["step"] == 300 for rank in (0, 2)))
    assert job.end(0, 2) == [0, 0]
    assert assert_true(job.facts(0)["taken"], 3, gone=1) > 0
    assert [job.errors(rank) for rank in (0, 2)] == [[], []]
    job.assert_nobody_waited(0, 2)


def test_a_rank_that_ends_earlier_is_missing_from_later_windows(job):
    job.start(3, (1, {"steps": 100, "wait": False}), steps=300)
    job.until(lambda: all(job.facts(rank)["step"] == 300 for rank in (0, 2)))
    assert job.end(0, 1, 2) == [0, 0, 0]
    assert assert_true(job.facts(0)["taken"], 3, gone=1) <= 10
    assert job.facts(0)["latest"]["missing_ranks"] == [1]
    assert [job.errors(rank) for rank in range(3)] == [[]] * 3
    job.assert_nobody_waited(0, 1, 2)


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("destroying", [True, False])
def test_others_go_on_without_rank_0_and_the_store_that_it_held(job, killed, destroying):
    job.start(3, (0, {"steps": 100, "wait": killed}), steps=300, destroying=destroying)
    job.until(lambda: all(job.facts(rank)["step"] > 100 for rank in (1, 2)))
    if killed:
        job.signal(0, signal.SIGKILL)
    job.until(lambda: all(job.facts(rank).get("done") for rank in (1, 2)))
    assert job.end(1, 2) == [0, 0]
    assert job.processes[0].wait(PROMPT) == (-signal.SIGKILL if killed else 0)
    for rank in (1, 2):
        assert job.facts(rank)["failure"]
        assert not [line for line in job.errors(rank) if "Traceback" in line or "terminate" in line]
        ours = [line for line in job.errors(rank) if "perf_callbacks" in line]
        assert len(ours) == 1
        assert "ranks stop exchanging, training goes on" in ours[0]
    job.assert_nobody_waited(1, 2)


@pytest.mark.parametrize("deaf", [0, 1])
def test_others_go_on_while_a_rank_is_deaf_and_end_before_it_hears_again(job, deaf):
    others = [rank for rank in range(3) if rank != deaf]
    job.start(3, steps=300)
    job.until(lambda: job.facts(deaf)["step"] > 50)
    job.signal(deaf, signal.SIGSTOP)
    job.until(lambda: all(job.facts(rank)["step"] == 300 for rank in others))
    assert job.end(*others) == [0, 0]  # while the other one is still stopped
    job.assert_nobody_waited(*others)
    job.signal(deaf, signal.SIGCONT)
    job.until(lambda: job.facts(deaf)["step"] == 300)
    assert job.end(deaf) == [0]
    for rank in range(3):
        assert not [line for line in job.errors(rank) if "Traceback" in line or "terminate" in line]


@pytest.mark.parametrize(("deaf", "seconds"), [(0, 20), (1, 2)])
def test_a_rank_that_is_deaf_for_a_while_costs_no_window(job, deaf, seconds):
    job.start(3, steps=200, lockstep=True)
    job.until(lambda: job.facts(deaf)["step"] > 50)
    job.signal(deaf, signal.SIGSTOP)
    time.sleep(seconds)
    job.signal(deaf, signal.SIGCONT)
    job.until_done(0, 1, 2)
    assert job.end(0, 1, 2) == [0, 0, 0]
    assert [job.facts(rank)["latest"] for rank in range(3)] == [whole(3, 19)] * 3
    assert_true(job.facts(0)["taken"], 3)
    assert [job.errors(rank) for rank in range(3)] == [[]] * 3
    assert all(job.facts(rank)["longest_call"] < NO_WAIT for rank in range(3) if rank != deaf)


def test_windows_go_without_a_rank_that_was_killed_and_rank_0_says_so_once(job):
    job.start(3, steps=300, deadline=1.0)
    job.until(lambda: job.facts(0)["step"] > 100)
    job.signal(1, signal.SIGKILL)
    job.until_done(0, 2)
    assert job.end(0, 2) == [0, 0]
    taken = job.facts(0)["taken"]
    assert 0 < assert_true(taken, 3, gone=1) < len(taken)
    assert taken[-1] == lacking(3, 29, 1)
    (line,) = job.errors(0)
    assert "no message came from 1 of 3 ranks" in line
    assert job.errors(2) == []
    job.assert_nobody_waited(0, 2)


def test_a_rank_that_is_deaf_beyond_the_deadline_costs_one_window_at_most(job):
    """For three times the deadline, as thirty seconds are of the real one. The others wait for its next step."""
    job.start(3, steps=200, lockstep=True, deadline=2.0)
    job.until(lambda: job.facts(1)["step"] > 50)
    job.signal(1, signal.SIGSTOP)
    time.sleep(6)
    job.signal(1, signal.SIGCONT)
    job.until_done(0, 1, 2)
    assert job.end(0, 1, 2) == [0, 0, 0]
    taken = job.facts(0)["taken"]
    assert assert_true(taken, 3, gone=1) >= len(taken) - 1
    assert taken[-1] == whole(3, 19)
    assert len(job.errors(0)) == sum(window["missing"] for window in taken)
    assert job.errors(1) + job.errors(2) == []


def test_ranks_restarted_by_an_elastic_launcher_exchange_their_own_windows(tmp_path):
    """Rank 1 dies in the first attempt. The launcher has a store per attempt: gloo needs it, see docs/ranks.md."""
    chosen = {"rank": -1, "world_size": 2, "steps": 60, "wait": False, "dies_at": 35, "deadline": 60.0}
    plan = Plan(directory=str(tmp_path), port=None, **chosen)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, "--max-restarts=1", "--monitor-interval=0.1", str(TESTS / "rank_process.py")]
    environ = program_environ(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    with (tmp_path / "errors").open("w") as errors:
        launched = subprocess.Popen(
            [*command, json.dumps(asdict(plan))], env=environ, stdout=errors, stderr=errors, start_new_session=True
        )
        try:
            code = launched.wait(2 * PROMPT)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(launched.pid, signal.SIGKILL)  # the ranks too
            launched.wait()
    said = (tmp_path / "errors").read_text()
    assert code == 0, said
    facts = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert [(one["attempt"], one["failure"], one["latest"]) for one in facts] == [(1, None, whole(2, 5))] * 2
    assert_true(facts[0]["taken"], 2)
    assert "perf_callbacks" not in said.replace(str(TESTS), "")
