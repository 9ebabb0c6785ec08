"""Samples of crossed cases."""

import itertools

import pytest


def sampled(cases, *dimensions):
    """Each case once; the combinations of the other dimensions take turns.

    All combinations occur if there are as many cases. The values of a mapping are named by their keys.
    """
    turns = itertools.cycle(itertools.product(*map(_told, dimensions)))
    rows = [(case, *next(turns)) for case in _told(cases)]
    return [pytest.param(*[value for _, value in row], id="-".join([told for told, _ in row])) for row in rows]


def crossed(cases, others):
    """All pairs. Each case has one quick pair, for which the other values take turns; the rest are slow."""
    return [
        pytest.param(case, value, id=f"{told}-{name}", marks=[pytest.mark.slow] * (number % len(others) != place))
        for number, (told, case) in enumerate(_told(cases))
        for place, (name, value) in enumerate(_told(others))
    ]


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
