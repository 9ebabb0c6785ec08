"""Signals of a rank, by what is known of its steps."""

import math

import pytest

from perf_callbacks.kernel.engine.steps import Columns
from perf_callbacks.kernel.records.fit_records import Steps
from perf_callbacks.stragglers import signals
from perf_callbacks.stragglers.local_times import LocalTime

DATA, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, GC, OTHER = 1.0, 2.0, 4.0, 0.5, 0.0, 0.25, 8.0


def columns(*, excluded=(None, None), tokens=(8, 8), pause=0.25):
    stages = [(seconds, seconds) for seconds in (DATA, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, GC, OTHER)]
    nothing = (None, None)
    return Columns(
        (1, 2), excluded, (4, 4), tokens, nothing, nothing, (pause,) * 2, (pause,) * 2, (15.75, 15.75), stages
    )


@pytest.mark.parametrize(("sharded", "local"), [(True, DATA + OTHER), (False, DATA + OTHER + FORWARD + OPTIMIZER)])
def test_the_stages_of_a_device_that_hold_no_waiting_are_local(sharded, local):
    sent = signals.of_stages(columns(), sharded=sharded)
    assert sent["local"] == [local, local]
    assert (sent["step"], sent["data"], sent["gc"]) == ((15.75,) * 2, (DATA,) * 2, (0.25,) * 2)
    assert sent.get("device") == (None if sharded else [FORWARD + OPTIMIZER] * 2)


def test_steps_that_are_in_no_row_are_unknown_and_sizes_that_vary_are_told():
    sent = signals.of_stages(columns(excluded=("evaluation", None), tokens=(8, 16)), sharded=False)
    assert sent["local"][0] is None
    assert sent["work"] == [None, 16]
    assert "work" not in signals.of_stages(columns(), sharded=False)


def test_the_steps_that_have_a_local_time_have_signals():
    sent = signals.of_local_times(columns(), [LocalTime(3.0, 0.5, 0.25, 0.125, 1.0), None])
    assert sent["local"][0] == 3.0
    assert math.isnan(sent["local"][1])
    assert (sent["gc"][0], sent["data"][0], sent["steal"][0]) == (0.5, 0.25, 0.125)
    assert signals.of_local_times(columns(), [None, LocalTime(math.nan, 0.0, 0.0, 0.0, math.nan)]) == {}


def test_a_rank_without_a_cpu_when_the_others_go_on_begins_late():
    steps = Columns.joined([columns()] * 3)
    woken_late, computed_late = LocalTime(3.25, 0.0, 0.0, 1.5, 2.0), LocalTime(4.5, 0.0, 0.0, 1.5, 2.0)
    usual, unknown = LocalTime(3.0, 0.0, 0.0, 0.0, 1.0), LocalTime(3.0, 0.0, 0.0, math.nan, 1.0)
    sent = signals.of_local_times(steps, [usual, woken_late, usual, computed_late, usual, unknown])
    assert sent["local"] == [3.0, 3.25 + 1.25, 3.0, 4.5, 3.0, 3.0]
    assert sent["steal"][:4] == (0.0, 1.5, 0.0, 1.5)


@pytest.mark.parametrize("device", [False, True])
def test_a_journals_steps_are_local_as_a_whole(device):
    block = Steps(
        step=(1, 2), step_time=(5.0, 6.0), data_time=(1.0, 1.0), forward_time=(1.0, 2.0), backward_time=(2.0, 2.0),
        optimizer_time=(0.5, 0.5), tokens=(8, 9), excluded=("first", None),
    )  # fmt: skip
    sent = signals.of_records([block], device=device)
    assert [name for name, column in sent.items() if not math.isnan(column[0])] == []
    assert {name: column[1] for name, column in sent.items() if not math.isnan(column[1])} == {
        "local": 6.0, "data": 1.0, "work": 9, **({"device": 4.5} if device else {}),
    }  # fmt: skip
