"""A law over the rows of a table is one test: it tries each row, and its failure names the rows that break the law."""

import functools
import inspect
from collections.abc import Iterable, Sequence

import pytest

ERRORS = (Exception, pytest.fail.Exception)
"""What breaks a law. A `pytest.raises` that fails raises no `Exception`."""


def each_row(names: str | Sequence[str], rows: Iterable[object]):
    """Call a test with each row, written as for `pytest.mark.parametrize`. All rows share the test's fixtures."""
    columns = names.replace(",", " ").split() if isinstance(names, str) else names
    cases = [_case(row, columns) for row in rows]

    def decorate(test):
        @functools.wraps(test)
        def law(**fixtures):
            broken = []
            for case in cases:
                try:
                    test(**fixtures, **dict(zip(columns, case.values, strict=True)))
                except ModuleNotFoundError:
                    raise  # `make test-pythons` skips the test
                except ERRORS as error:
                    broken.append((case.id or repr(case.values), error))
            if broken:
                report = "\n".join(f"{row}: {type(error).__name__}: {error}" for row, error in broken)
                raise AssertionError(f"{len(broken)} of {len(cases)} rows:\n{report}") from broken[0][1]

        signature = inspect.signature(test)
        fixtures = [value for name, value in signature.parameters.items() if name not in columns]
        law.__signature__ = signature.replace(parameters=fixtures)
        return law

    return decorate


def _case(row, columns):
    if not isinstance(row, type(pytest.param())):
        row = pytest.param(*row) if len(columns) > 1 else pytest.param(row)
    assert len(row.values) == len(columns), row
    assert not row.marks, "a mark belongs to a test of its own"
    return row
