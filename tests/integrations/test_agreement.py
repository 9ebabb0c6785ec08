"""What concerns all ranks is done by all of them or by none, from the same step on."""

import pytest
from jobs import Job
from tiny import records

from perf_callbacks.kernel.records.fit_records import Checklist, Gc

pytestmark = pytest.mark.slow

RANKS = range(2)
TRIAL = {"kernel.fit.trial.TURN": 4, "kernel.fit.trial.PAIRS": 2}
OVER = 2 + 2 * 2 * 4


def all_of(**settings):
    """What all ranks are told by their environment."""
    return {rank: {f"PERF_CALLBACKS_{name}": value for name, value in settings.items()} for rank in RANKS}


def rows(job, rank):
    return [(row.status, row.why) for row in records(job.directory, Checklist, rank=rank) if row.item == "gc"]


def collections(job, rank, after):
    """When it was collected because we said so, and what."""
    found = records(job.directory, Gc, rank=rank)
    return [(one.step, one.generation) for one in found if not one.automatic and one.step > after]


@pytest.mark.parametrize("door", ["loop", "transformers", "lightning", "accelerate"])
def test_what_pays_on_all_ranks_is_kept_by_all_from_the_same_step_on(tmp_path, door):
    with Job(
        tmp_path,
        door=door,
        plan={"steps": 90, "limits": TRIAL, "finds": True},
        environ=all_of(CHECKLIST="prove", GC_INTERVAL="40"),
    ) as job:
        job.assert_ended(*RANKS)
        job.assert_unharmed(*RANKS, warnings=1)
        found = [collections(job, rank, OVER) for rank in RANKS]
        assert found[0] == found[1]
        assert found[0] in ([(40, 1), (80, 1)], [(80, 1)])  # by the counter alone, from the verdict on
        for rank in RANKS:
            (tried, _), (status, why) = rows(job, rank)
            assert (tried, status) == ("on trial", "applied")
            assert why.startswith("it saves 300 of 1e+03 ms a step")


def test_what_one_rank_gains_nothing_by_is_kept_by_none(tmp_path):
    with Job(
        tmp_path,
        plan={"steps": 60, "limits": TRIAL},
        own={0: {"finds": True}, 1: {"finds": False}},
        environ=all_of(CHECKLIST="prove"),
    ) as job:
        job.assert_ended(*RANKS)
        job.assert_unharmed(*RANKS, warnings=1)
        assert [[status for status, _ in rows(job, rank)] for rank in RANKS] == [["on trial", "skipped"]] * 2
        assert "because other ranks don't gain" in rows(job, 0)[-1][1]
        assert "is within the noise" in rows(job, 1)[-1][1]
        ((mine,), (theirs,)) = [collections(job, rank, OVER) for rank in RANKS]
        assert mine == theirs
        assert mine[1] == 2


def test_ranks_that_exchange_nothing_prove_nothing(tmp_path):
    environ = all_of(CHECKLIST="prove", EXCHANGE="off")
    with Job(tmp_path, plan={"steps": 20, "limits": TRIAL}, environ=environ) as job:
        job.assert_ended(*RANKS)
        job.assert_unharmed(*RANKS, warnings=1)
        assert [[status for status, _ in rows(job, rank)] for rank in RANKS] == [["applied"]] * 2
        assert "checklist='prove' acts as 'on': ranks exchange nothing, and can't agree." in job.said(0)


def test_a_rank_in_danger_is_collected_for_by_all_and_more_often(tmp_path):
    """It collects at once by itself too; the other one keeps to what both agreed on."""
    with Job(
        tmp_path,
        plan={"steps": 120},
        own={1: {"cycles": 400, "limits": {"garbage.growth.MOST_YOUNG": 1500}}},
        environ=all_of(GC_INTERVAL="40"),
    ) as job:
        job.assert_ended(*RANKS)
        job.assert_unharmed(*RANKS, warnings=3)
        calm, endangered = [collections(job, rank, 2) for rank in RANKS]
        assert {*calm} < {*endangered}
        steps = [step for step, _ in calm]
        assert steps[-3:] == [100, 110, 120]
        said = [[why for _, why in rows(job, rank)[1:]] for rank in RANKS]
        assert [why.startswith("every ") for why in said[0]] == [True, True]
        assert said[1][0].endswith("only on this rank; requested of all ranks: collect every 20 steps")
        intervals = [[why.partition(" from ")[0] for why in rank] for rank in (said[0], said[1][1:])]
        assert intervals[0] == intervals[1]  # a rank on a busy machine may hear of it a step later
