"""What concerns all ranks is done by all of them or by none, from the same step on."""

import pytest
from jobs import Job
from trainings.runs import records

from perf_callbacks.kernel.records.fit_records import Checklist, Gc

pytestmark = pytest.mark.slow

RANKS = range(2)


def all_of(**settings):
    """What all ranks are told by their environment."""
    return {rank: {f"PERF_CALLBACKS_{name}": value for name, value in settings.items()} for rank in RANKS}


def rows(job, rank):
    return [(row.status, row.why) for row in records(job.directory, Checklist, rank=rank) if row.item == "gc"]


def collections(job, rank, after):
    """When it was collected because we said so, and what."""
    found = records(job.directory, Gc, rank=rank)
    return [(one.step, one.generation) for one in found if not one.automatic and one.step > after]


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
