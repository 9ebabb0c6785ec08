"""What concerns all ranks is done by all of them or by none, from the same step on."""

import pytest
from jobs.training_job import TrainingJob
from trainings.runs import records

from perf_callbacks.kernel.records.fit_records import Checklist, Gc

pytestmark = pytest.mark.slow


def reasons(job, rank):
    return [row.why for row in records(job.directory, Checklist, rank=rank) if row.item == "gc"]


def collections(job, rank, after):
    """When the callback collected, and what."""
    pauses = records(job.directory, Gc, rank=rank)
    return [(pause.step, pause.generation) for pause in pauses if not pause.automatic and pause.step > after]


def test_a_rank_in_danger_is_collected_for_by_all_and_more_often(tmp_path):
    """It collects at once by itself too; the other one keeps to what both agreed on."""
    job = TrainingJob(
        tmp_path,
        plan={"steps": 120},
        plans={1: {"cycles": 400, "limits": {"garbage.growth.MOST_YOUNG": 1500}}},
        environ={"PERF_CALLBACKS_GC_INTERVAL": "40"},
    ).to_its_end()
    job.assert_unharmed(0, 1, warnings=3)
    calm, endangered = [collections(job, rank, 2) for rank in range(2)]
    assert {*calm} < {*endangered}
    assert [step for step, _ in calm][-3:] == [100, 110, 120]
    first, second = [reasons(job, rank)[1:] for rank in range(2)]
    assert [why.startswith("every ") for why in first] == [True, True]
    assert second[0].endswith("only on this rank; requested of all ranks: collect every 20 steps")
    intervals = [[why.partition(" from ")[0] for why in whys] for whys in (first, second[1:])]
    assert intervals[0] == intervals[1]  # a rank on a busy machine may hear of it a step later
