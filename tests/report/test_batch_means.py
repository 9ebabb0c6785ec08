"""Intervals for steps that depend on each other: how often they hold the truth."""

import itertools
import math
import random

import pytest

from perf_callbacks.report.batch_means import Estimate, change_between_runs, quick, ratio

LONG = pytest.param(3200, 0.9, marks=pytest.mark.slow)


def a_run(seed, *, length=640, correlation=0.0, spread=0.1, factor=1.0):
    """Step times around 1 that depend on the time before (AR(1))."""
    rng, state, times = random.Random(seed), 0.0, []
    for _ in range(length):
        state = correlation * state + math.sqrt(1 - correlation**2) * rng.gauss(0.0, spread)
        times.append(factor * math.exp(state))
    return times


def change(before, after):
    return change_between_runs([before], [after])


def interval(seed, *, factor=1.0, **options):
    runs = a_run(2 * seed, **options), a_run(2 * seed + 1, factor=factor, **options)
    before, after = [ratio(times, [1.0] * len(times)) for times in runs]
    return change(before, after)


@pytest.mark.parametrize(("length", "correlation"), [(16, 0.0), (40, 0.0), (640, 0.0), (640, 0.5), LONG])
def test_the_interval_holds_the_truth_as_often_as_it_says(length, correlation):
    found = [interval(seed, factor=1.1, length=length, correlation=correlation) for seed in range(400)]
    held = sum([one.low <= 0.1 <= one.high for one in found]) / len(found)
    assert 0.97 <= held <= 1.0


def test_a_rate_has_less_spread_than_its_steps_if_long_steps_do_more():
    rng = random.Random(0)
    amounts = [rng.randint(1, 9) for _ in range(200)]
    exact = ratio(amounts, [2.0 * amount for amount in amounts])
    assert exact == Estimate(0.5, 0.0, 16)
    assert ratio(amounts, [1.0] * 200).error > 0.01


def test_equal_runs_have_not_changed_at_all():
    one = ratio([2.0] * 32, [1.0] * 32)
    assert change(one, one) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "columns", [([], []), ([1.0] * 9, [1.0] * 9), ([0.0] * 50, [1.0] * 50), ([1.0] * 50, [0.0] * 50)]
)
def test_too_few_steps_or_nothing_have_no_estimate(columns):
    assert ratio(*columns) is None


def test_ten_steps_are_enough():
    assert ratio([1.0] * 10, [1.0] * 10).batches == 5


def test_a_quick_step_is_as_quick_among_slow_ones():
    times = a_run(0, length=320, spread=0.01)
    among = [time * (1 + 5 * (place % 3 == 0)) for place, time in enumerate(times)]
    assert quick(among).value == pytest.approx(quick(times).value, rel=0.01)
    assert change(quick(times), quick([1.1 * time for time in times])).change == pytest.approx(0.1)


@pytest.mark.parametrize(("length", "correlation"), [(640, 0.0), (640, 0.5), LONG])
def test_the_interval_of_a_quick_step_holds_the_truth_as_often_as_claimed(length, correlation):
    runs = [a_run(seed, length=length, correlation=correlation, factor=1 + 0.1 * (seed % 2)) for seed in range(400)]
    estimates = [quick(times) for times in runs]
    found = [change(before, after) for before, after in zip(estimates[::2], estimates[1::2], strict=True)]
    assert sum([one.low <= 0.1 <= one.high for one in found]) / len(found) >= 0.96


def test_a_slow_phase_of_the_machine_changes_no_quick_step():
    times = a_run(0, length=640, spread=0.01)
    slowed = [time * (1.5 if 200 <= place < 440 else 1) for place, time in enumerate(times)]
    found = change(quick(times), quick(slowed))
    assert found.low <= 0 <= found.high
    assert abs(found.change) < 0.01


@pytest.mark.parametrize("length", [120, 125, 640])
def test_the_error_of_a_quick_step_is_the_jackknifes(length):
    times, ends = a_run(3, length=length), [length * number // 6 for number in range(7)]
    kept = [sorted(times[:start] + times[stop:]) for start, stop in itertools.pairwise(ends)]
    logs = [math.log(one[int(0.05 * len(one))]) for one in kept]
    mean = sum(logs) / 6
    found = quick(times)
    assert found.value == sorted(times)[int(0.05 * length)]
    assert found.error == pytest.approx(math.sqrt(5 / 6 * sum([(log - mean) ** 2 for log in logs])))
    assert (found.error > 0, found.batches) == (True, 6)


@pytest.mark.parametrize("times", [[], [1.0] * 119, [0.0] * 200])
def test_too_few_steps_have_no_quick_step(times):
    assert quick(times) is None
