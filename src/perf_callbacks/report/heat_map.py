"""The report's heat map.

Rows are ranks, and columns are steps. For each stage, a cell shows how much longer the rank takes than the median of
all ranks.
"""

from heapq import nlargest
from math import isnan
from statistics import median
from typing import Any

from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.series import OWN, STAGES, Axis, included, kept, short
from perf_callbacks.report.units import duration

CELLS = 120
"""Largest number of columns of the heat map."""

CELL_STEPS = 100
"""The median of a cell is computed from a sample of the cell's steps. The sample has at least this many steps, or all
steps if there are fewer."""

RANKS = 64
"""Largest number of rows of the heat map."""


def heat_map(fit: FitHistory, within: range | None = None) -> dict[str, Any] | None:
    """Return the heat map of a fit. None means that the fit has a single rank, or no steps."""
    axis = Axis([fit], CELLS, within)
    excess = _excess(fit, axis, within) if len(fit.ranks) > 1 else {}
    own = [name for name in OWN if name in excess] or [*excess]
    if not own:
        return None
    peaks = {
        rank: max((value, name) for name in own for value in [0.0, *excess[name][rank]] if value is not None)
        for rank in sorted(fit.ranks)
    }
    slowest = nlargest(RANKS, peaks, key=lambda rank: peaks[rank][0])
    seconds, name = peaks[slowest[0]]
    stage, ranks = name.removesuffix("_time"), sorted(slowest)
    return {
        "first": axis.first,
        "width": axis.width,
        "last": axis.last,
        "ranks": ranks,
        "left_out": len(fit.ranks) - len(ranks),
        "names": [name.removesuffix("_time") for name in excess],
        "stage": stage,
        "excess": [[short(rows[rank], 3) for rank in ranks] for rows in excess.values()],
        "text": f"Heat map of {len(ranks)} ranks over the steps. "
        f"The largest excess is {duration(seconds)} per step: rank {slowest[0]}, {stage}.",
    }


def _excess(fit: FitHistory, axis: Axis, within: range | None) -> dict[str, dict[int, list[float | None]]]:
    """Return how many seconds each rank is slower than the median of all ranks, by stage and bucket of steps."""
    names = ("step_time", *STAGES)
    usual: dict[str, dict[int, list[float | None]]]
    usual = {name: {rank: [None] * axis.count for rank in fit.ranks} for name in names}
    for rank, attempt, lower, upper in kept(fit, within):
        for bucket, start, end in axis.cut(attempt, lower, upper):
            places = included(attempt, start, end)
            places = places[:: max(1, len(places) // CELL_STEPS)]
            for name in names:
                column = attempt.columns[name]
                if places and not isnan(column[places[0]]):
                    usual[name][rank][bucket] = median([column[place] for place in places])
    excess = {}
    for name, times in usual.items():
        columns = [[one for one in column if one is not None] for column in zip(*times.values(), strict=True)]
        middle = [median(column) if column else None for column in columns]
        if any(value is not None for value in middle):
            excess[name] = {
                rank: [
                    None if value is None or other is None else value - other
                    for value, other in zip(row, middle, strict=True)
                ]
                for rank, row in times.items()
            }
    return excess
