"""Arithmetic of time intervals, in microseconds."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple


class Interval(NamedTuple):
    """Microseconds."""

    start: float
    end: float


def union(intervals: Iterable[tuple[float, float]]) -> list[Interval]:
    """Merge intervals that overlap or touch, sorted by start.

    >>> union([(5, 6), (0, 2), (1, 3)])
    [Interval(start=0, end=3), Interval(start=5, end=6)]
    """
    merged = list[Interval]()
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1].end:
            if end > merged[-1].end:
                merged[-1] = Interval(merged[-1].start, end)
        else:
            merged.append(Interval(start, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """The intervals must not overlap."""
    return sum([end - start for start, end in intervals])


def without(intervals: Iterable[Interval], covered: Sequence[Interval]) -> list[Interval]:
    """Return the parts outside of `covered`. Both must be sorted and free of overlaps, like the result of `union`.

    >>> without([Interval(0, 10)], [Interval(2, 3), Interval(9, 12)])
    [Interval(start=0, end=2), Interval(start=3, end=9)]
    """
    left, place = list[Interval](), 0
    for start, end in intervals:
        while place < len(covered) and covered[place].end <= start:
            place += 1
        begin, after = start, place
        while after < len(covered) and covered[after].start < end:
            if covered[after].start > begin:
                left.append(Interval(begin, covered[after].start))
            begin = max(begin, covered[after].end)
            after += 1
        if begin < end:
            left.append(Interval(begin, end))
    return left


def covered(intervals: Sequence[Interval], start: float, end: float) -> float:
    """Return the length between `start` and `end` of intervals that are sorted and free of overlaps.

    >>> covered([Interval(0, 2), Interval(3, 9)], 1, 5)
    3.0
    """
    total = 0.0
    for place in range(bisect_left(intervals, start, key=attrgetter("end")), len(intervals)):
        interval = intervals[place]
        if interval.start >= end:
            break
        total += min(interval.end, end) - max(interval.start, start)
    return total


def shares(work: Sequence[tuple[float, float, int]]) -> list[float]:
    """Return each interval's share of the busy time; together they are as long as the union.

    An interval is (start, end, priority). At each moment, the running ones of the highest priority, 0, share equally.

    >>> shares([(0, 10, 0), (5, 15, 1), (0, 10, 0)])
    [5.0, 5.0, 5.0]
    """
    edges = sorted(
        [
            edge
            for place, (start, end, _) in enumerate(work)
            if end > start
            for edge in ((start, 1, place), (end, 0, place))
        ]
    )
    parts = [0.0] * len(work)
    running: dict[int, int] = {}  # intervals by rank
    passed: dict[int, float] = {}  # by rank, the time so far of an interval that runs all along
    last = 0.0
    for time, begins, place in edges:
        if running:
            first = min(running)
            passed[first] = passed.get(first, 0.0) + (time - last) / running[first]
        last, rank = time, work[place][2]
        now = passed.get(rank, 0.0)
        parts[place] = -now if begins else parts[place] + now
        running[rank] = running.get(rank, 0) + (1 if begins else -1)
        if not running[rank]:
            del running[rank]
    return parts
