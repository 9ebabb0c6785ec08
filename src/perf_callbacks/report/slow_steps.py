"""Table of a job's slowest steps, with the rank and the stage that made each step slow."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import isnan

from perf_callbacks.kernel.records.fit_records import Gc
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.series import OWN, STAGES, WAITING, Outlier, kept
from perf_callbacks.report.tables import NUMBER, TEXT, Table
from perf_callbacks.report.units import DASH, duration, rate

MOST = 12


def table(fit: FitHistory, slow: Sequence[Outlier], usual: Mapping[int, Mapping[str, float]]) -> Table | None:
    """Tabulate the slowest steps and their causes.

    Args:
        fit: The fit.
        slow: The slow steps of all ranks.
        usual: Median time of a step and of each stage, by rank.
    """
    slowest: dict[int, Outlier] = {}
    for one in sorted(slow, key=lambda one: one.seconds, reverse=True):
        slowest.setdefault(one.step, one)
    rows = [_row(fit, one, usual) for one in [*slowest.values()][:MOST]]
    columns = [
        ("step", NUMBER),
        ("time", NUMBER),
        ("of median", NUMBER),
        ("rank", NUMBER),
        ("where", TEXT),
        ("remarks", TEXT),
    ]
    note = (
        "Where: the stage of a rank that exceeded its median most. A backward that only waits for a late rank is not "
        "the cause."
    )
    return Table("Slowest steps", columns, rows, note) if rows else None


def _row(fit: FitHistory, slowest: Outlier, usual: Mapping[int, Mapping[str, float]]) -> tuple[str, ...]:
    found: list[tuple[float, int, str]] = []
    gc_seconds = 0.0
    for rank, attempt, lower, upper in kept(fit):
        place = bisect_left(attempt.step, slowest.step, lower, upper)
        if place == upper or attempt.step[place] != slowest.step:
            continue
        excess = {name: attempt.columns[name][place] - usual[rank].get(name, 0.0) for name in STAGES}
        found += [(seconds, rank, name) for name, seconds in excess.items() if not isnan(seconds)]
        gc_seconds = max(gc_seconds, sum([pause.seconds for pause in attempt.of(Gc) if pause.step == slowest.step]))
    stages = STAGES if len(fit.ranks) == 1 else OWN
    cause = max((one for one in found if one[2] in stages), default=None)
    waited = max((one for one in found if one[2] in WAITING), default=None)
    if cause is None or (waited is not None and cause[0] < waited[0] / 2):
        cause = waited  # if no rank came late, a backward that is slow on all ranks is the cause itself
    usual_seconds = usual[slowest.rank].get("step_time")
    remarks = [f"garbage collection {duration(gc_seconds)}" if gc_seconds else "", slowest.reason or ""]
    return (
        f"{slowest.step:,}",
        duration(slowest.seconds),
        f"{rate(slowest.seconds / usual_seconds if usual_seconds else 1.0)}x",
        str(slowest.rank if cause is None else cause[1]),
        DASH if cause is None else f"{cause[2].removesuffix('_time')} +{duration(max(0.0, cause[0]))}",
        "; ".join(filter(None, remarks)),
    )
