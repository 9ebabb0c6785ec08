"""Waits for other ranks are the stage `communication`, in each integration, and a stopwatch agrees."""

from statistics import quantiles

import pytest
from jobs import IMPORTS, Job
from trainings.runs import records

from perf_callbacks.kernel.records.fit_records import Steps

STAGES = ("data", "forward", "backward", "optimizer", "communication", "gc", "other")
STEPS, SECONDS = 24, 0.03

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("door", IMPORTS)
def test_a_wait_in_the_forward_is_communication_as_a_stopwatch_says(tmp_path, door):
    with Job(tmp_path, door=door, plan={"meets": True, "step_seconds": SECONDS, "steps": STEPS}) as job:
        job.assert_ended(0, 1)
    blocks = records(tmp_path, Steps)
    waited = [seconds for block in blocks for seconds in block.communication_time]
    met = job.facts(0)["met"]
    assert len(waited) == len(met) == STEPS
    # quartiles, because a busy CPU may stop a rank between the stopwatch and the exchange
    low, _, high = quantiles([ours / theirs for ours, theirs in zip(waited, met, strict=True)])
    assert high >= 0.98
    if door != "lightning":  # it broadcasts a flag after each batch
        assert low <= 1.02
    for block in blocks:
        stages = [getattr(block, f"{stage}_time") for stage in STAGES]
        for step_seconds, *parts in zip(block.step_time, *filter(None, stages), strict=True):
            assert sum(parts) == pytest.approx(step_seconds, rel=0.01)
        assert max(block.forward_time) < sum(met)
