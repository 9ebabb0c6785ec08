"""Check that runs are alike. A verdict needs runs with the same model, batch, device and number of ranks."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from perf_callbacks.flops.by_shape.shape_counts import SAME
from perf_callbacks.report.compared_run import ComparedRun
from perf_callbacks.report.units import DASH

SAME_LENGTH = 0.1
"""As `SAME`, for tokens per step: larger, because the lengths of samples differ by chance."""

FIELDS = ("parameters", "batch", "device", "devices", "world_size")
"""All runs must agree in them. An unknown value agrees with every value."""

Values = Mapping[str, tuple[Any, Any]]
"""Values of both sides by name. Different values of a side are a text that lists them."""


def differences(first: Sequence[ComparedRun], second: Sequence[ComparedRun]) -> Values:
    by_name = different_fields(first, second, FIELDS)
    for name, most in (("samples", SAME), ("tokens", SAME_LENGTH)):
        amounts = per_step(name, first, second, most)
        if amounts is not None:
            by_name[f"{name} per step"] = amounts
    return by_name


def different_fields(
    first: Sequence[ComparedRun], second: Sequence[ComparedRun], fields: Sequence[str]
) -> dict[str, tuple[Any, Any]]:
    """If a run's number of parameters is unknown, the model class must agree too."""
    by_name: dict[str, tuple[Any, Any]] = {}
    all_counted = all(run.run.parameters is not None for run in [*first, *second])
    for name in fields if all_counted else ("model", *fields):
        values = [[getattr(run.run, name) for run in side] for side in (first, second)]
        sides = [distinct(value for value in side if value is not None) for side in values]
        if len({*sides[0], *sides[1]}) > 1:
            by_name[name] = (listed(sides[0]), listed(sides[1]))
    return by_name


def per_step(
    name: str, first: Sequence[ComparedRun], second: Sequence[ComparedRun], most: float = SAME
) -> tuple[float, float] | None:
    """Mean samples or tokens of each side; None: they are equal, or a side has no known number."""
    sides = [[amount for run in side if (amount := run.per_step(name)) is not None] for side in (first, second)]
    if not all(sides):
        return None
    every = [*sides[0], *sides[1]]
    return None if max(every) - min(every) <= most * max(every) else (fmean(sides[0]), fmean(sides[1]))


def distinct(values: Iterable[Any]) -> list[Any]:
    """In order of first appearance. The values may be unhashable."""
    kept: list[Any] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept


def listed(values: Sequence[Any]) -> Any:
    """The single value of a side, or a text that lists several."""
    if len(values) == 1:
        return values[0]
    return ", ".join([DASH if value is None else str(value) for value in values]) or None
