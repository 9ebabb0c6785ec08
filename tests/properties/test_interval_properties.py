"""Arithmetic of intervals, against a count of small moments."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from perf_callbacks.profiles.intervals import Interval, length, shares, union, without

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])))
RANKED = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.integers(0, 2)), max_size=12).map(
    lambda found: [(start, start + time, rank) for start, time, rank in found]
)


def moments(spans):
    return {moment for start, end in spans for moment in range(start, end)}


@given(SPANS)
def test_a_union_counts_each_moment_once(spans):
    merged = union(spans)
    assert length(merged) == len(moments(spans))
    assert all([one.end < after.start for one, after in pairwise(merged)])


@given(SPANS, SPANS)
def test_a_difference_has_the_moments_of_its_first_side(left, right):
    assert moments(without(union(left), union(right))) == moments(left) - moments(right)


@given(RANKED)
def test_shares_sum_to_the_union_and_go_to_the_lowest_rank(work):
    found = shares(work)
    assert min(found, default=0) >= 0
    assert sum(found) == pytest.approx(len(moments([(start, end) for start, end, _ in work])))
    expected = [0.0] * len(work)
    for moment in moments([(start, end) for start, end, _ in work]):
        running = [(rank, place) for place, (start, end, rank) in enumerate(work) if start <= moment < end]
        first = [place for rank, place in running if rank == min(running)[0]]
        for place in first:
            expected[place] += 1 / len(first)
    assert found == pytest.approx(expected)


def test_an_interval_without_time_has_no_share():
    assert shares([(3, 3, 0), (0, 5, 2)]) == [0.0, 5.0]
    assert union([(3, 3)]) == []
    assert without([Interval(0, 4)], [Interval(0, 4)]) == []
