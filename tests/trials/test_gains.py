"""Speedups and their intervals, from made-up times."""

import math
import random

import pytest
from rows import each_row

from perf_callbacks.trials.gains import CLOSE, OTHER, SAME, compared, gains

BASE = "as it is"


def test_the_worked_example():
    found = gains({BASE: [2.0, 2.2, 2.1], "fused": [1.0, 1.05, 1.1]}, BASE)["fused"]
    logs = [math.log(2.0), math.log(2.2 / 1.05), math.log(2.1 / 1.1)]  # with two settings, as for pairs
    mean = sum(logs) / 3
    deviation = math.sqrt(sum((one - mean) ** 2 for one in logs) / 2)
    width = 4.303 * deviation / math.sqrt(3)
    assert found.factor == pytest.approx(math.exp(mean))
    assert (found.low, found.high) == pytest.approx((math.exp(mean - width), math.exp(mean + width)))
    assert found.sure


def test_a_single_round_has_no_interval():
    found = gains({BASE: [2.0], "fused": [1.0]}, BASE)["fused"]
    assert found == (2.0, None, None)
    assert not found.sure


@pytest.mark.parametrize("times", [{BASE: []}, {BASE: [1.0, 2.0]}, {BASE: [], "fused": []}])
def test_nothing_to_compare(times):
    assert gains(times, BASE) == {}


def test_a_round_that_is_slow_as_a_whole_changes_nothing():
    even = gains({BASE: [2.0, 2.1, 2.0], "a": [1.0, 1.0, 1.1], "b": [2.0, 2.0, 2.0]}, BASE)
    slow = gains({BASE: [2.0, 2.1, 20.0], "a": [1.0, 1.0, 11.0], "b": [2.0, 2.0, 20.0]}, BASE)
    for name, gain in even.items():
        assert slow[name] == pytest.approx(gain)


@pytest.mark.parametrize(("settings", "rounds"), [(2, 3), (4, 2), (6, 3)])
def test_the_interval_holds_the_truth_nineteen_times_in_twenty(settings, rounds):
    rng, held, total = random.Random(settings), 0, 0
    for _ in range(1000):
        loads = [rng.gauss(0, 0.2) for _ in range(rounds)]
        times = {
            str(name): [math.exp(load - 0.1 * name + rng.gauss(0, 0.03)) for load in loads] for name in range(settings)
        }
        for name, gain in gains(times, "0").items():
            held += gain.low <= math.exp(0.1 * int(name)) <= gain.high
            total += 1
    assert 0.92 <= held / total <= 0.98


@each_row(
    ("first", "second", "kind"),
    [
        ([1.0, math.nan], [1.0, math.nan], SAME),
        ([1.0, 0.5], [1.0, 0.5004], CLOSE),
        ([1.0, 0.5], [1.0, 0.6], OTHER),
        ([1.0, 0.5], [1.0, math.nan], OTHER),
        ([1.0, 0.5, 0.4], [1.0, 0.5], SAME),
        ([], [1.0], None),
    ],
)
def test_losses_are_compared(first, second, kind):
    assert compared(first, second) == kind
