"""Counts of FLOPs take a small part of the time of a fit."""

from types import SimpleNamespace

import pytest
from rows import each_row

from perf_callbacks.flops import count_schedule
from perf_callbacks.flops.count_schedule import MOST_PART, RECOUNTS, CountSchedule

KNOWN = SimpleNamespace(has_no_count=False, uncounted_calls={}, rating=None, varies=False)
"""Work with a count for each kind of step."""


@pytest.fixture(autouse=True)
def _as_for_users(monkeypatch):
    monkeypatch.setattr(count_schedule, "EARLY_SECONDS", 10.0)


def spent(step_seconds, count_seconds, *, fit_seconds=60.0, new_shapes=True, live=True):
    """The seconds of counts after the first, and the counted steps of a fit."""
    schedule, elapsed, counted = CountSchedule(KNOWN), 0.0, []
    while elapsed < fit_seconds:
        if live:
            schedule.elapsed_seconds = elapsed
        first = not schedule.done and schedule.steps == 1
        shape = new_shapes and schedule.done and schedule.affordable()
        if first or shape or (schedule.done and schedule.wanted(schedule.steps)):
            schedule.spend()
            schedule.took(count_seconds)
            schedule.done = True
            counted.append(schedule.steps + 1)
            elapsed += count_seconds
        schedule.steps += 1
        elapsed += step_seconds
    return (len(counted) - 1) * count_seconds, counted


@each_row("new_shapes", [True, False])
@each_row(("step_seconds", "count_seconds"), [(0.01, 0.01), (0.06, 0.3), (0.5, 1.0), (2.0, 1.0)])
def test_counts_take_a_twentieth_of_a_minute_at_most(step_seconds, count_seconds, new_shapes):
    seconds, counted = spent(step_seconds, count_seconds, new_shapes=new_shapes)
    assert counted[0] == 2
    assert seconds <= MOST_PART * 60.5


def test_cheap_counts_are_all_made():
    _, counted = spent(0.01, 0.005, new_shapes=False)
    assert counted == [2, *RECOUNTS, *range(1009, counted[-1] + 1, 1009)]


def test_an_expensive_first_count_is_made_and_costs_nothing():
    seconds, counted = spent(0.01, 20.0)
    assert (seconds, counted) == (0.0, [2])


def test_ranks_of_a_job_count_the_same_steps_at_any_cost():
    quick, slow = [spent(0.01, seconds, new_shapes=False, live=False)[1][:6] for seconds in (0.001, 0.9)]
    assert quick == slow == [2, *RECOUNTS]


def test_a_recount_that_had_no_time_is_made_up_later():
    schedule = CountSchedule(KNOWN)
    schedule.done, schedule.steps, schedule.elapsed_seconds = True, RECOUNTS[0] - 1, 1.0
    schedule.took(0.6)
    assert not schedule.wanted(schedule.steps)
    schedule.steps, schedule.elapsed_seconds = 20, 30.0
    assert schedule.wanted(20)
    schedule.spend(new=True)  # the batch is of a new shape, so nothing was counted again
    assert schedule.wanted(20)
    schedule.spend()
    assert not schedule.wanted(20)
    assert schedule.counts == 1


def test_short_counts_of_new_shapes_come_in_the_first_steps():
    assert spent(0.2, 0.9, fit_seconds=4.2)[1] == [2, 3, 4, 5]
    assert spent(0.2, 1.1, fit_seconds=4.2)[1] == [2]


def test_short_recounts_keep_to_their_share_of_the_time():
    assert spent(0.2, 0.9, fit_seconds=4.2, new_shapes=False)[1] == [2]
