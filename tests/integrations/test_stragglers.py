"""A step that takes long, through every integration: no time is asserted, only that it stands out."""

import time

import pytest
from trainings.doors import DOORS
from trainings.runs import records

from perf_callbacks.kernel.records.rank_records import Straggler

pytestmark = pytest.mark.usefixtures("accelerate_state")

STEPS, LONG = 40, 30


@pytest.mark.parametrize("door", DOORS)
def test_a_long_step_is_told_with_its_cause(tmp_path, door):
    def pause(step):
        if step == LONG:
            time.sleep(0.7)

    done = DOORS[door](tmp_path, after_step=pause, steps=STEPS, flops="off").run()
    told = [(one.step, one.cause) for one in records(tmp_path, Straggler) if one.seconds_lost > 0.5]
    assert told in ([(LONG, "host")], [(LONG + 1, "host")])
    assert done.summary.stragglers.seconds_by_cause["host"] > 0.5
    assert done.summary.stragglers.costliest[0][:2] == (0, "host")
    assert done.summary.stragglers.slowdown is None


@pytest.mark.parametrize("door", DOORS)
def test_nothing_is_compared_with_stragglers_off(tmp_path, door):
    done = DOORS[door](tmp_path, steps=STEPS, stragglers="off").run()
    assert done.summary.stragglers is None
    assert records(tmp_path, Straggler) == []
