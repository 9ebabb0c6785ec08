"""Table of the ranks in a frame of `perf-callbacks watch`: hanging, silent and slow ranks come first."""

from collections.abc import Sequence
from typing import NamedTuple

from perf_callbacks.kernel.records.journal_ends import FitEnds
from perf_callbacks.kernel.records.shares import WORTH
from perf_callbacks.report.history import finite
from perf_callbacks.report.layout import clean
from perf_callbacks.report.rank_pace import RankPace, RecentLoss
from perf_callbacks.report.recorded_run import RecordedRun, own_stall, sign, stalled_seconds
from perf_callbacks.report.series import STAGES
from perf_callbacks.report.styled_lines import NARROW, Line, Style, cut_left, styled
from perf_callbacks.report.units import DASH, duration, long_duration
from perf_callbacks.stragglers.text import NAMES

MARK = "> "

WIDEST_NOTE = 32

_NAMES = {"communication_time": "comm."}
_GAP = "  "


class _Row(NamedTuple):
    """A rank in the table."""

    order: tuple[int, float]
    rank: int
    note: str
    style: Style
    cells: Sequence[str]


def rank_table(
    run: RecordedRun, paces: Sequence[RankPace], losses: Sequence[RecentLoss], columns: int
) -> Sequence[Line]:
    if len(run.ranks) < 2:  # noqa: PLR2004
        return []
    hung = run.hang is not None and run.state in {"hangs", "silent"}
    return _places(run, columns) if hung else _table(run, paces, losses, columns)


def _places(run: RecordedRun, columns: int) -> list[Line]:
    """In a hang: each rank's stage and its innermost line of Python."""
    hanging = {stall.rank for stall, _ in run.hanging}
    rows: list[tuple[tuple[float, ...], Line]] = []
    narrow = columns < NARROW
    heading = f"  rank  {'stage':<10}" + ("" if narrow else f"{_GAP}{'for':>7}")
    room = max(8, columns - len(heading) - len(_GAP))
    for ends in run.ranks:
        rank, noticed = ends.run.rank, own_stall(ends)
        stage, since, place = DASH, DASH, _state(run, ends)
        if noticed is not None:
            stall = noticed[1]
            stage, since = clean(stall.stage, 10), long_duration(finite(stalled_seconds(ends)))
            place = clean(stall.stack[-1], 500) if stall.stack else place
        hangs = rank in hanging
        text = f"{MARK if hangs else '  '}{rank:>4}  {stage:<10}" + ("" if narrow else f"{_GAP}{since:>7}")
        line = styled(f"{text}{_GAP}{cut_left(place, room)}".rstrip(), "bad" if hangs else "")
        rows.append(((not hangs, noticed is not None, rank), line))
    rows.sort(key=lambda row: row[0])
    return [styled(f"{heading}{_GAP}innermost line", "dim"), *[line for _, line in rows]]


def _table(run: RecordedRun, paces: Sequence[RankPace], losses: Sequence[RecentLoss], columns: int) -> list[Line]:
    stages = [name for name in STAGES if any(name in pace.stages for pace in paces)]
    slow = {rank: loss for loss in reversed(losses) for rank in loss.ranks}
    costs = _costs(run)
    rows: list[_Row] = []
    for ends, pace in zip(run.ranks, paces, strict=True):
        order, note, style = _problem(run, ends, slow.get(pace.rank), costs.get(pace.rank))
        cells = [
            f"{pace.step:,}"[:15],
            duration(pace.step_seconds),
            *[duration(pace.stages.get(name)) for name in stages],
        ]
        rows.append(_Row(order, pace.rank, note, style, cells))
    rows.sort(key=lambda row: (row.order, row.rank))
    headings = ["step", "step time", *[_NAMES.get(name, name.removesuffix("_time")) for name in stages]]
    widths = [max(map(len, column)) for column in zip(headings, *[row.cells for row in rows], strict=True)]
    ranks = max(4, *[len(str(row.rank)) for row in rows])
    free = columns - len(MARK) - ranks
    longest = max(len(row.note) for row in rows)
    room = max(0, min(longest, WIDEST_NOTE, free - widths[1] - 2 * len(_GAP)))
    shown = _fitting(widths, free - (room + len(_GAP) if room else 0))

    def line(begin: str, note: str, cells: Sequence[str], style: Style) -> Line:
        beside = _GAP + clean(note, room).ljust(room) if room else ""
        return styled(begin + beside + "".join([_GAP + cells[place].rjust(widths[place]) for place in shown]), style)

    heading = line(f"{'rank':>{len(MARK) + ranks}}", "", headings, "dim")
    begins = [f"{MARK if row.style else '  '}{row.rank:>{ranks}}" for row in rows]
    return [heading, *[line(begin, row.note, row.cells, row.style) for begin, row in zip(begins, rows, strict=True)]]


def _costs(run: RecordedRun) -> dict[int, tuple[float, str]]:
    stragglers = None if run.summary is None else run.summary.stragglers
    costs: dict[int, tuple[float, str]] = {}
    for ranks, cause, seconds, _ in stragglers.named() if stragglers is not None else ():
        if finite(seconds) is not None and stragglers is not None and seconds >= WORTH * max(0.0, stragglers.seconds):
            for rank in ranks:
                costs.setdefault(rank, (seconds, cause))
    return costs


def _fitting(widths: Sequence[int], room: int) -> list[int]:
    """Indices of the columns that fit: first the step time, then the stages, then the step number."""
    wishes = [1, *range(2, len(widths)), 0]
    columns = []
    for place in wishes:
        need = widths[place] + len(_GAP)
        if need > room:
            break
        columns.append(place)
        room -= need
    return sorted(columns)


def _problem(
    run: RecordedRun, ends: FitEnds, slow: RecentLoss | None, cost: tuple[float, str] | None
) -> tuple[tuple[int, float], str, Style]:
    note = _state(run, ends)
    if note:
        return (0, 0.0), note, "bad"
    if slow is not None and run.state == "running":  # in other states, the losses are old
        return (1, -slow.seconds), f"slow: {_cause(slow.cause)}", "warning"
    if cost is not None:
        return (2, -cost[0]), f"cost {duration(cost[0])}: {_cause(cost[1])}", "warning"
    return (3, 0.0), "", ""


def _cause(cause: str) -> str:
    return clean(NAMES.get(cause, cause), 30)


def _state(run: RecordedRun, ends: FitEnds) -> str:
    """Say that a rank failed, that its process is gone, or that it is silent while the run is not."""
    if ends.final is not None:
        return f"failed: {clean(ends.final.failure, 60)}" if ends.final.failure else ""
    if ends.signs is not None and ends.signs.gone is not None:
        return f"process {ends.signs.gone} is gone"
    if run.state != "silent" and not run.lives(ends):
        return f"silent for {long_duration(max(0.0, finite(run.now - sign(ends)) or 0.0))}"
    return ""
