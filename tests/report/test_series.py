"""Series that are drawn over the steps."""

import pytest
from fakes import a_run
from journals import a_fit, steps

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.report import tables
from perf_callbacks.report.heat_map import heat_map
from perf_callbacks.report.history import gather
from perf_callbacks.report.series import BUCKETS, Axis, medians, outliers, series


def a_history(*journals):
    [fit] = gather(journals)
    return fit


def journal(*records, **run):
    return [Entry(0.0, a_run(**run)), *[Entry(1.0, record) for record in records]]


def usual(fit):
    return {rank: medians(fit, rank) for rank in fit.ranks}


def test_a_bucket_has_the_least_the_mean_and_the_greatest_of_its_steps():
    fit = a_history(journal(steps(1, 8, slow=2)))
    drawn = series(fit, Axis([fit], 4))
    assert drawn.axis.middles == [1.5, 3.5, 5.5, 7.5]
    assert drawn.times.least == [0.25] * 4
    assert drawn.times.most == [1.1875, 0.25, 0.25, 0.25]
    assert drawn.times.mean[0] == pytest.approx((0.25 + 1.1875) / 2)
    assert drawn.flops_per_second.mean[1] == pytest.approx(1600)
    assert drawn.shares["data_time"][1] == pytest.approx(0.25)
    assert "gc_time" not in drawn.shares


def test_steps_in_no_row_and_lost_steps_are_in_no_bucket():
    lost = steps(1, 4, excluded=("first", None, None, None))
    fit = a_history(journal(lost, steps(9, 9)))
    assert series(fit, Axis([fit], BUCKETS)).times.mean == [None, 0.25, 0.25, 0.25, None, None, None, None, 0.25]


def test_some_steps_alone_can_be_drawn():
    fit = a_history(journal(steps(1, 20)))
    drawn = series(fit, Axis([fit], BUCKETS, range(5, 8)))
    assert (drawn.axis.first, drawn.axis.last, drawn.steps) == (5, 7, 3)
    nothing = series(fit, Axis([fit], BUCKETS, range(50, 80)))
    assert (nothing.steps, nothing.axis.middles) == (0, [])


def test_slow_steps_are_kept_by_themselves():
    fit = a_history(a_fit(0, world_size=2), a_fit(1, world_size=2))
    assert [(one.step, one.rank, one.reason) for one in outliers(fit, usual(fit))] == [(12, 1, None)]


def test_a_slow_step_is_explained_by_the_rank_that_the_other_waited_for():
    waiting = steps(
        1,
        12,
        backward_time=(*[0.125] * 4, 1.0625, *[0.125] * 7),
        step_time=(*[0.25] * 4, 1.1875, *[0.25] * 7),
    )
    fit = a_history(journal(steps(1, 12, slow=5), world_size=2, rank=1), journal(waiting, world_size=2))
    found = tables.slow_steps(fit, outliers(fit, usual(fit)), usual(fit))
    assert found.rows == [("5", "1.19 s", "4.75x", "1", "data +938 ms", "")]


def test_a_rank_that_is_slow_for_long_stands_out_in_the_heat_map():
    slow = steps(1, 9, data_time=(0.5,) * 9)
    found = heat_map(
        a_history(*[journal(slow if rank == 2 else steps(1, 9), rank=rank, world_size=3) for rank in range(3)])
    )
    excess = dict(zip(found["names"], found["excess"], strict=True))
    assert (found["ranks"], found["left_out"], found["stage"]) == ([0, 1, 2], 0, "data")
    assert excess["data"] == [[0] * 9, [0] * 9, [0.438] * 9]
    assert excess["forward"] == [[0] * 9] * 3
    assert "gc" not in excess
    assert found["text"].endswith("The largest excess is 438 ms per step: rank 2, data.")


def test_a_single_rank_and_ranks_without_steps_have_no_heat_map():
    assert heat_map(a_history(a_fit(0))) is None
    assert heat_map(a_history(*[journal(rank=rank, world_size=2) for rank in range(2)])) is None
