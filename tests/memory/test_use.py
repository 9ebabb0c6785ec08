"""Slopes and leaks: series of memory, one point in ten seconds."""

import math
import random

import pytest
from rows import each_row

from perf_callbacks.memory.use import FEWEST, MOST, MemoryReading, Series, leak, slope

SHAPES = {
    "flat": (lambda _: 4.0, False),
    "line": (lambda share: 4.0 + share, True),
    "warm-up": (lambda share: 4.0 + min(1.0, 3 * share), False),
    "levels off": (lambda share: 5.0 - math.exp(-5 * share), False),
    "levels off later": (lambda share: 9.0 - 8.0 * math.exp(-4 * share), False),
    "jump": (lambda share: 4.0 + (share > 0.6), False),
    "saw-tooth": (lambda share: 4.0 + share * 7 % 1.0, False),
    "falls": (lambda share: 5.0 - share, False),
    "too little": (lambda share: 4.0 + 0.1 * share, False),
}


def points(shape, *, length=60, noise=0.0, seed=0):
    rng = random.Random(seed)
    return [
        MemoryReading(10.0 * place, 5 * place, shape(place / length) + noise * rng.gauss(0.0, 1.0))
        for place in range(length)
    ]


@each_row("length", [30, 60, 96])
@each_row("noise", [0.0, 0.01])
@each_row("shape", SHAPES)
def test_only_memory_that_keeps_growing_is_a_leak(shape, noise, length):
    form, leaks = SHAPES[shape]
    for seed in range(20 if noise else 1):
        assert (leak(points(form, length=length, noise=noise, seed=seed)) is not None) is leaks


def test_a_leak_tells_its_pace():
    found = leak(points(lambda share: 4.0 + share, length=60))
    assert found.gb_per_hour == pytest.approx(6.0)
    assert found.gb_per_step == pytest.approx(1 / 300)
    assert 4.0 < found.before_gb < found.after_gb < 5.0


def test_without_steps_the_pace_per_step_is_unknown():
    still = [point._replace(step=7) for point in points(lambda share: 4.0 + share)]
    assert leak(still).gb_per_step is None


def test_a_few_points_far_off_change_nothing():
    line = points(lambda share: 4.0 + share)
    line[30] = line[30]._replace(gb=40.0)
    assert slope(line) == pytest.approx(6.0, rel=0.01)


def test_too_few_points_have_no_slope():
    fewest = FEWEST * 3 // 2 - 1
    assert slope(points(lambda share: share, length=fewest - 1)) is None
    assert leak(points(lambda share: 1 + share, length=fewest - 1)) is None
    assert slope(points(lambda share: share, length=fewest)) is not None
    assert slope([MemoryReading(1.0, 1, 4.0)] * 60) is None


def test_a_series_of_any_length_keeps_a_few_points_evenly():
    series = Series()
    for place in range(100_000):
        series.add(MemoryReading(10.0 * place, place, 4.0 + place / 100_000))
    assert MOST / 2 <= len(series.points) <= MOST
    gaps = {second.step - first.step for first, second in zip(series.points, series.points[1:], strict=False)}
    assert len(gaps) == 1
    assert leak(series.points) is not None
