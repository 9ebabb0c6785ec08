"""Likeness of runs: a verdict needs runs with the same model, batch, device and number of ranks."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from perf_callbacks.report.compared_run import ComparedRun
from perf_callbacks.report.units import DASH

SAME_AMOUNT = 0.01
"""Samples per step count as equal up to this relative difference. Step times are compared only if both the samples and
the tokens per step differ by no more than this."""

SAME_LENGTH = 0.1
"""Tokens per step count as equal up to this relative difference, because the lengths of samples differ by chance."""

FIELDS = ("parameters", "batch", "device", "devices", "world_size")
"""Fields of `Run` in which all runs must agree. Unknown values agree with all values."""

Values = Mapping[str, tuple[Any, Any]]
"""By name, the values of both sides. If the runs of a side differ, a text lists their values."""


def unlike(first: Sequence[ComparedRun], second: Sequence[ComparedRun]) -> Values:
    """Return the properties because of which runs are not comparable."""
    found = unlike_fields(first, second, FIELDS)
    for name, most in (("samples", SAME_AMOUNT), ("tokens", SAME_LENGTH)):
        amounts = per_step(name, first, second, most)
        if amounts is not None:
            found[f"{name} per step"] = amounts
    return found


def unlike_fields(
    first: Sequence[ComparedRun], second: Sequence[ComparedRun], fields: Sequence[str]
) -> dict[str, tuple[Any, Any]]:
    """Return the fields of `Run` that differ. If the number of parameters is unknown, the model's class must agree."""
    found: dict[str, tuple[Any, Any]] = {}
    known = all(run.run.parameters is not None for run in [*first, *second])
    for name in fields if known else ("model", *fields):
        sides = [_known(getattr(run.run, name) for run in side) for side in (first, second)]
        if len({*sides[0], *sides[1]}) > 1:
            found[name] = (listed(sides[0]), listed(sides[1]))
    return found


def per_step(
    name: str, first: Sequence[ComparedRun], second: Sequence[ComparedRun], most: float = SAME_AMOUNT
) -> tuple[float, float] | None:
    """Return the mean amounts per step of both sides. None: the amounts are equal, or unknown on a side."""
    sides = [[found for run in side if (found := run.per_step(name)) is not None] for side in (first, second)]
    if not all(sides):
        return None
    every = [*sides[0], *sides[1]]
    return None if max(every) - min(every) <= most * max(every) else (fmean(sides[0]), fmean(sides[1]))


def _known(values: Iterable[Any]) -> list[Any]:
    return distinct(value for value in values if value is not None)


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values, ordered by first appearance. Settings from a journal may be unhashable."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def listed(values: Sequence[Any]) -> Any:
    """Return the single value of a side, or a text that lists its values. None: there is no value."""
    if len(values) == 1:
        return values[0]
    return ", ".join([DASH if value is None else str(value) for value in values]) or None
