"""States of a run, from the ends of its journals."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import a_run
from journals import a_summary, steps
from rows import each_row

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.journal_ends import FitEnds
from perf_callbacks.kernel.records.machine_records import Use
from perf_callbacks.kernel.records.rank_records import Stall
from perf_callbacks.kernel.records.signs_of_life import Signs
from perf_callbacks.kernel.records.summary_parts import StallSummary
from perf_callbacks.report.recorded_run import RecordedRun, gather, merge
from perf_callbacks.report.run_card import facts, notes, render, state

BEGAN = 1_000_000.0


def ends(*latest, rank=0, seconds=20.0, so_far=None, pid=None, copied=0.0, superseded=False, world_size=1, **run):
    """The ends of a rank's journal, whose last record was written 20 seconds after the fit began."""
    record = a_run(rank=rank, world_size=world_size, **{"started_unix": BEGAN} | run)
    entries = [one if isinstance(one, Entry) else Entry(seconds, one) for one in latest]
    signs = None if superseded else Signs(BEGAN + seconds + copied, pid)
    return FitEnds(
        journal=Path(f"out/perf_callbacks/rank{rank}.jsonl"),
        run=record,
        first=(),
        latest=(Entry(1.0, steps(1, 20)), *entries, Entry(seconds, Use(step=20))),
        interim=None if so_far is None else Entry(seconds, so_far),
        unreadable=0,
        signs=signs,
    )


def at(*ranks, later=5.0):
    """The run of these ranks, looked at some seconds after its last record."""
    return RecordedRun(ranks, BEGAN + 20.0 + later)


def stalled(rank=0, stage="data", *, t=15.0, step=20, stack=("train.py:3 main", "loader.py:41 next")):
    return Entry(t, Stall(step=step, rank=rank, stage=stage, since_seconds=10.0, stack=stack))


def in_stall(where=None, **changes):
    return replace(a_summary(), stalls=StallSummary(count=1, seconds=10.0, under_way=True, where=where), **changes)


SAID = "The training is in data: loader.py:41."
SINCE = "no sign of life since 1970-01-12 13:47 UTC"
LATELY = "last sign of life 5.00 s ago"
KILLED = "killed, or its machine is gone, or its disk is gone or full"
ALIVE = "process 7 is alive: it is stopped, runs C code that holds the GIL, or can't write to its disk"
FOLLOWED = "ended without a summary, and a later fit writes the same journal"
AT = "at step 20 after 20.0 s"
FAILED = a_summary(failure="RuntimeError: no")


@each_row(
    ("run", "expected", "sentence"),
    [
        (at(ends(a_summary())), "ended", "ended 5.00 s ago, after step 20 and 20.0 s"),
        (at(ends(FAILED)), "failed", "stopped early 5.00 s ago, after step 20 and 20.0 s: RuntimeError: no"),
        (at(ends()), "running", "running: step 20 after 20.0 s, last sign of life 5.00 s ago"),
        (at(ends(pid=7)), "running", "running as process 7: step 20 after 20.0 s, last sign of life 5.00 s ago"),
        (at(ends(), later=30.0), "running", "running: step 20 after 20.0 s, last sign of life 30.0 s ago"),
        (at(ends(), later=-9.0), "running", "running: step 20 after 20.0 s, last sign of life 0 ago"),
        (at(ends(), later=7200.0), "silent", f"{SINCE} (2 h 0 min ago): {KILLED}, {AT}"),
        (at(ends(pid=7), later=100.0), "silent", f"{SINCE} (100 s ago): {ALIVE}, {AT}"),
        (at(ends(superseded=True)), "silent", f"{SINCE} (5.00 s ago): {FOLLOWED}, {AT}"),
        (
            at(ends(stalled(), so_far=in_stall(SAID))),
            "hangs",
            f"hangs for 15.0 s after step 20: {SAID[:-1]}. Not killed: {LATELY}",
        ),
        (at(ends(stalled())), "hangs", f"hangs for 15.0 s after step 20: rank 0 is in data. Not killed: {LATELY}"),
        (at(ends(so_far=in_stall())), "hangs", f"hangs after step 20. Not killed: {LATELY}"),
        (
            at(ends(stalled()), later=600.0),
            "silent",
            f"{SINCE} (10 min ago): {KILLED}. The run hung for 15.0 s after step 20: rank 0 is in data",
        ),
    ],
)
def test_the_state_is_said_in_a_sentence(run, expected, sentence):
    assert (run.state, state(run)) == (expected, sentence)
    assert " ".join(render(run).split()).startswith(sentence + ".")


@pytest.mark.parametrize(
    "run",
    [
        at(ends(stalled(step=12))),
        at(ends(stalled(), steps(21, 22), so_far=in_stall())),
        at(ends(stalled(t=5.0), so_far=a_summary())),
        at(ends(stalled(rank=1), so_far=a_summary())),
    ],
    ids=["an earlier step", "steps since", "a newer summary without a stall", "another rank's"],
)
def test_a_stall_that_is_over_is_no_hang(run):
    assert run.state == "running"
    assert run.hanging == []


def test_copied_files_are_no_sign_of_life():
    day = 86400.0
    run = at(ends(copied=day), later=day)
    assert (run.state, run.last_sign) == ("silent", BEGAN + 20.0)
    assert at(ends(copied=day, pid=7), later=day).state == "running"  # a machine that was suspended


def test_a_job_runs_as_long_as_a_rank_does():
    silent = replace(ends(rank=1, world_size=3), signs=Signs(BEGAN - 600.0, None))
    run = at(ends(world_size=3), silent)
    assert run.state == "running"
    assert [*notes(run)] == ["ranks without a summary and without a sign of life: 1", "ranks without a journal: 2"]
    assert at(ends(a_summary(), world_size=2), ends(rank=1, world_size=2)).state == "running"


def test_a_rank_that_failed_is_named():
    run = at(ends(a_summary(), world_size=2), ends(FAILED, rank=1, world_size=2), later=99.0)
    assert (run.state, run.failure) == ("failed", "rank 1: RuntimeError: no")


def test_a_rank_that_ended_beside_a_silent_rank_has_ended():
    run = at(ends(a_summary(), world_size=2), ends(rank=1, world_size=2), later=99.0)
    assert run.state == "ended"
    assert [*notes(run)] == ["ranks without a summary and without a sign of life: 1"]


def test_the_stack_is_that_of_the_rank_that_is_blamed():
    said = "Rank 1 is in data: loader.py:41. Rank 0 waits in backward."
    waits = stalled(0, "backward", stack=("train.py:9 main",))
    first = ends(waits, stalled(1, stack=()), so_far=in_stall(said), world_size=2)
    run = at(first, ends(stalled(1, step=20), so_far=in_stall(), rank=1, world_size=2, pid=8))
    assert [(one.rank, one.stage, one.stack[-1]) for one, _ in run.hanging] == [(1, "data", "loader.py:41 next")]
    shown = render(run)
    assert said.rstrip(".") in " ".join(shown.split())
    assert (
        "  stack of rank 1 in data (process 8), innermost line last:\n    train.py:3 main\n    loader.py:41 next\n"
        in shown
    )
    alone = at(first)  # without the journal of rank 1
    assert [(one.rank, one.stack) for one, _ in alone.hanging] == [(0, ("train.py:9 main",))]
    assert facts(alone)["stall"] == {
        "seconds": 15.0,
        "where": said,
        "ranks": [{"rank": 0, "stage": "backward", "stack": ["train.py:9 main"], "pid": None}],
    }


def test_runs_are_gathered_newest_first_by_their_last_attempt():
    later = {"started_unix": BEGAN + 50.0}
    found = gather(
        [
            ends(run_id="a", world_size=2),
            ends(run_id="a", world_size=2, rank=1),
            ends(run_id="b", **later),
            ends(run_id="a", attempt=2, step=10, started_unix=BEGAN + 30.0),
        ],
        BEGAN,
    )
    assert [(run.lead.run.run_id, run.lead.run.attempt, len(run.ranks)) for run in found] == [("b", 1, 1), ("a", 2, 1)]


def test_ranks_in_several_directories_are_a_run_and_copies_are_several():
    first, second = at(ends(world_size=2)), at(ends(rank=1, world_size=2))
    assert [len(run.ranks) for run in merge([second, first])] == [2]
    assert [len(run.ranks) for run in merge([first, first, second])] == [2, 1]


def test_without_a_summary_the_last_steps_give_the_pace():
    run = at(ends())
    assert run.step_seconds == 0.25
    assert render(run).endswith("perf_callbacks: no summary on disk. The last steps took 250 ms each.")


def test_a_summary_so_far_says_up_to_which_step():
    run = at(ends(so_far=a_summary(step=15)))
    assert run.lead.last_step == 20
    assert render(run).endswith("\n  so far, up to step 15. The last steps took 250 ms each.")
    assert render(at(ends(so_far=a_summary()))).endswith("\n  so far, up to step 20")


def test_values_that_contradict_each_other_make_no_table():
    run = at(ends(so_far=replace(a_summary(), included_seconds=1e308, stage_seconds={"data_time": 1e-308})))
    evil = at(ends(so_far=replace(a_summary(), wall_seconds={"steps": float("inf")})))
    assert "perf_callbacks: " in render(run)
    assert "perf_callbacks: " in render(evil)
