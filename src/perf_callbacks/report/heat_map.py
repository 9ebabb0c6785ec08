"""The report's heat map. A cell shows how much longer a rank takes than the median of all ranks, by stage and step."""

from heapq import nlargest
from math import isnan
from statistics import median
from typing import Any

from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.series import OWN, STAGES, Axis, included, kept, short
from perf_callbacks.report.units import duration

CELLS = 120

CELL_STEPS = 100
"""Least steps in the sample from which the median of a cell is computed."""

RANKS = 64


def heat_map(fit: FitHistory, within: range | None = None) -> dict[str, Any] | None:
    """None: a single rank, or no steps."""
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
    """Seconds beyond the median of all ranks, by stage and bucket of steps."""
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
        columns = [[value for value in column if value is not None] for column in zip(*times.values(), strict=True)]
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
