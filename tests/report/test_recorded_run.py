"""States of a run, from the ends of its journals."""

from dataclasses import replace
from pathlib import Path

from fakes import a_run
from journals import a_summary, steps
from snapshots import matches

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.journal_ends import FitEnds
from perf_callbacks.kernel.records.machine_records import Use
from perf_callbacks.kernel.records.rank_records import Stall
from perf_callbacks.kernel.records.signs_of_life import Signs
from perf_callbacks.kernel.records.summary_parts import StallSummary
from perf_callbacks.report.recorded_run import RecordedRun, gather, merge
from perf_callbacks.report.run_card import facts, render, state

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


DAY = 86400.0
SAID = "The training is in data: loader.py:41."
BLAMED = "Rank 1 is in data: loader.py:41. Rank 0 waits in backward."
FAILED = a_summary(failure="RuntimeError: no")
SILENT = replace(ends(rank=1, world_size=3), signs=Signs(BEGAN - 600.0, None))
WAITS = stalled(0, "backward", stack=("train.py:9 main",))
FIRST = ends(WAITS, stalled(1, stack=()), so_far=in_stall(BLAMED), world_size=2)
RUNS = {
    "ended": at(ends(a_summary())),
    "failed": at(ends(FAILED)),
    "running": at(ends()),
    "running as a process": at(ends(pid=7)),
    "nearly silent": at(ends(), later=30.0),
    "from the future": at(ends(), later=-9.0),
    "silent": at(ends(), later=7200.0),
    "silent, but alive": at(ends(pid=7), later=100.0),
    "followed by another fit": at(ends(superseded=True)),
    "hangs at a place": at(ends(stalled(), so_far=in_stall(SAID))),
    "hangs": at(ends(stalled())),
    "hangs without a record": at(ends(so_far=in_stall())),
    "hung before it was silent": at(ends(stalled()), later=600.0),
    "a stall in an earlier step": at(ends(stalled(step=12))),
    "steps since the stall": at(ends(stalled(), steps(21, 22), so_far=in_stall())),
    "a newer summary without a stall": at(ends(stalled(t=5.0), so_far=a_summary())),
    "a stall of another rank": at(ends(stalled(rank=1), so_far=a_summary())),
    "copied files": at(ends(copied=DAY), later=DAY),
    "a machine that was suspended": at(ends(copied=DAY, pid=7), later=DAY),
    "a job with a silent and a missing rank": at(ends(world_size=3), SILENT),
    "a job of which a rank has ended": at(ends(a_summary(), world_size=2), ends(rank=1, world_size=2)),
    "a rank that failed": at(ends(a_summary(), world_size=2), ends(FAILED, rank=1, world_size=2), later=99.0),
    "a rank that ended beside a silent rank": at(
        ends(a_summary(), world_size=2), ends(rank=1, world_size=2), later=99.0
    ),
    "a rank that is blamed": at(FIRST, ends(stalled(1, step=20), so_far=in_stall(), rank=1, world_size=2, pid=8)),
    "a rank that is blamed without its journal": at(FIRST),
    "a summary up to an earlier step": at(ends(so_far=a_summary(step=15))),
    "a summary up to the last step": at(ends(so_far=a_summary())),
}  # fmt: skip
"""By name: a run, looked at some seconds after its last record."""


def test_states_and_cards_are_as_their_snapshot():
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    shown = ""
    for name, run in RUNS.items():
        stacks = [f"rank {stall.rank} in {stall.stage}: {stall.stack}" for stall, _ in run.hanging]
        lines = [f"=== {name}: {run.state}, {run.failure}, last sign {run.last_sign - BEGAN:g}", *stacks, render(run)]
        shown += "".join([f"{line}\n" for line in lines])
        assert " ".join(render(run).split()).startswith(state(run) + ".")
    assert matches(Path(__file__).with_name("states.txt"), shown)


def test_facts_of_a_hang_name_rank_stage_and_stack():
    assert facts(RUNS["a rank that is blamed without its journal"])["stall"] == {
        "seconds": 15.0,
        "where": BLAMED,
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


def test_values_that_contradict_each_other_make_no_table():
    broken = {"included_seconds": 1e308, "stage_seconds": {"data_time": 1e-308}}
    for changes in (broken, {"wall_seconds": {"steps": float("inf")}}):
        assert "perf_callbacks: " in render(at(ends(so_far=replace(a_summary(), **changes))))
