"""Samples of crossed cases."""

import itertools
import os
import time

import pytest

# Processes that run a part of the tests inherit it: all have the same cases, at midnight too.
DAY = os.environ.setdefault("TESTS_DAY", str(int(time.time()) // 86_400))


def of_the_day(rows):
    """A tenth of the rows. Ten days in a row have them all, and so has `TESTS_DAY=all`."""
    return [*rows] if DAY == "all" else [*rows][int(DAY) % 10 :: 10]


def sampled(cases, *dimensions):
    """Each case once; the combinations of the other dimensions take turns.

    All combinations occur if there are as many cases. The values of a mapping are named by their keys.
    """
    turns = itertools.cycle(itertools.product(*map(_told, dimensions)))
    rows = [(case, *next(turns)) for case in _told(cases)]
    return [pytest.param(*[value for _, value in row], id="-".join([told for told, _ in row])) for row in rows]


def crossed(cases, others):
    """One quick pair of each case, for which the other values take turns, and as slow tests the day's of the rest."""
    quick, slow = [], []
    for number, (told, case) in enumerate(_told(cases)):
        for place, (name, value) in enumerate(_told(others)):
            pairs, marks = (quick, []) if number % len(others) == place else (slow, [pytest.mark.slow])
            pairs.append(pytest.param(case, value, id=f"{told}-{name}", marks=marks))
    return quick + of_the_day(slow)


def half_slow(rows):
    """Mark half of the rows of `sampled` as slow: two in a row, so that values that take turns stay in both halves."""
    return [
        pytest.param(*row.values, id=row.id, marks=[*row.marks, *[pytest.mark.slow] * (number % 4 in {1, 2})])
        for number, row in enumerate(rows)
    ]


def _told(values):
    if isinstance(values, dict):
        return [*values.items()]
    return [(value if isinstance(value, str) else repr(value), value) for value in values]
