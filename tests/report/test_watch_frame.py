"""Frames of `perf-callbacks watch`, compared whole with snapshots, and their most important lines.

`WRITE_SNAPSHOTS=1 python -m pytest tests/report/test_watch_frame.py` writes them anew.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import a_run
from journals import write
from recorded import NOW, stand_still
from rows import each_row
from snapshots import matches
from watched import BEGAN, CASES, LASTS, ends, healthy, so_far, straggler

from perf_callbacks.commands import main
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Gc, Span
from perf_callbacks.kernel.records.rank_records import Straggler
from perf_callbacks.kernel.records.signs_of_life import Signs
from perf_callbacks.report import watch_frame
from perf_callbacks.report.rank_pace import Paces
from perf_callbacks.report.recorded_run import RecordedRun
from perf_callbacks.report.styled_lines import plain
from perf_callbacks.report.watch_frame import TerminalSize

SNAPSHOTS = Path(__file__).with_name("frames")

LATER = {"kill": 90.0}


def seen(case, columns, rows=None, footer=""):
    run = RecordedRun(tuple(CASES[case]()), BEGAN + LASTS + LATER.get(case, 1.5))
    return watch_frame.frame(run, Paces().current(run), TerminalSize(columns=columns, rows=rows), footer)


@each_row("columns", [40, 80, 200])
@each_row("case", CASES)
def test_a_frame_is_as_its_snapshot(case, columns):
    lines = [plain(line) for line in seen(case, columns)]
    assert max(map(len, lines)) <= columns
    assert matches(SNAPSHOTS / f"{case}-{columns}.txt", "\n".join(lines) + "\n")


@each_row("columns", [5, 20, 40, 80, 200])
@each_row("case", CASES)
def test_the_first_lines_say_the_most_important(case, columns):
    lines = seen(case, columns)
    said = " ".join(plain(line) for line in lines[:6]) if columns > 40 else " ".join(map(plain, lines[:14]))
    wanted = {
        "healthy": ["running as process 4711: step 1,000", "Nothing to win here"],
        "straggler": ["running: step 1,000", "Rank 3 is slow: waiting for data. The job lost 7.50 s in 100 steps."],
        "hang": ["hangs for 60.0 s after step 1,000: Rank 2 is in data: loader.py:41 `fetch`."],
        "kill": ["no sign of life since", "killed, or its machine is gone, or its disk is gone or full"],
        "ended": ["ended 1.50 s ago", "Waiting for data took 25% of the run"],
    }[case]
    for sentence in wanted:
        assert sentence in " ".join(said.split())


@each_row("rows", [1, 5, 10, 16, 24, 50])
@each_row("case", CASES)
def test_a_frame_fills_a_terminal(case, rows):
    lines = seen(case, 80, rows, "q quit")
    assert len(lines) == rows
    assert plain(lines[-1]) == "q quit"


def test_the_slow_rank_is_first_and_marked():
    lines = seen("straggler", 80)
    heading = next(place for place, line in enumerate(lines) if plain(line).lstrip().startswith("rank"))
    assert plain(lines[heading + 1]).startswith(">    3  slow: waiting for data")
    assert {span.style for span in lines[heading + 1]} == {"warning"}
    assert [plain(line)[:6].strip() for line in lines[heading + 2 : heading + 5]] == ["0", "1", "2"]


PAUSE = Entry(290.0, Straggler(step=960, rank=2, cause="gc", seconds_lost=0.06))
SLOW = Entry(299.0, Straggler(step=1000, rank=40, cause="data", seconds_lost=3.75, steps=50))
FULL = ends(so_far=so_far(step=50_000))
DEAD = straggler()
DEAD[1] = replace(DEAD[1], signs=Signs(BEGAN + LASTS - 100.0, None))
OTHERS = {
    "a single pause": [ends(*[PAUSE] * (not rank), rank=rank, ranks=4) for rank in range(4)],
    "64 ranks": [ends(*[SLOW] * (not rank), rank=rank, ranks=64) for rank in range(64)],
    "a process that is gone": [replace(healthy()[0], signs=Signs(BEGAN + LASTS, None, 4711))],
    "a rank that died": DEAD,
    "a slow rank that no record names": [
        ends(ranks=2, so_far=so_far(findings=())), ends(rank=1, ranks=2, wait=0.15),
    ],
    "a full journal": [replace(FULL, latest=(Entry(9.0, FULL.latest[0].record),))],
    "an unknown step time": [ends(so_far=so_far(included_steps=0, included_seconds=0.0))],
}  # fmt: skip


def test_frames_of_other_runs_are_as_their_snapshot():
    shown = ""
    for name, ranks in OTHERS.items():
        run = RecordedRun(tuple(ranks), BEGAN + LASTS + 1.5)
        size = TerminalSize(columns=80, rows=30 if len(ranks) > 4 else None)
        lines = map(plain, watch_frame.frame(run, Paces().current(run), size, "q quit"))
        shown += f"=== {name}\n" + "".join([f"{line}\n" for line in lines])
    assert matches(SNAPSHOTS / "others.txt", shown)


def test_the_pace_of_an_unchanged_rank_is_kept():
    run, paces = RecordedRun(tuple(straggler()), BEGAN + LASTS), Paces()
    before = paces.current(run)
    later = RecordedRun((replace(run.ranks[0], signs=Signs(BEGAN, 5)), *run.ranks[1:3], straggler()[3]), BEGAN + LASTS)
    after = paces.current(later)
    assert [new is old for new, old in zip(after, before, strict=True)] == [True, True, True, False]


def test_events_of_all_ranks_are_in_the_order_in_which_they_happened(tmp_path, capsys, monkeypatch):
    stand_still(monkeypatch)
    about, late = {"world_size": 2}, NOW - 40.0  # rank 1 began 60 s after rank 0
    collected = {"generation": 2, "seconds": 1.0, "collected": 7, "automatic": True}
    first = [
        Entry(0.0, a_run(started_unix=NOW - 100.0, **about)),
        Entry(71.0, Span(kind="evaluation", step=70, start=69.0, seconds=2.0)),
        Entry(75.0, Gc(step=65, stage="other", start=64.0, **collected)),  # written with a later step
    ]
    second = [
        Entry(0.0, a_run(rank=1, started_unix=late, **about)),
        Entry(13.0, Gc(step=71, stage="other", start=12.0, **collected)),
    ]
    write(tmp_path, first, second)
    assert main(["watch", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.split("last events\n")[1].splitlines()
    assert [line.split()[:5] for line in shown] == [
        ["27.0", "s", "ago", "step", "71"], ["29.0", "s", "ago", "step", "70"], ["35.0", "s", "ago", "step", "65"],
    ]  # fmt: skip


def test_without_a_run_the_place_is_said():
    lines = watch_frame.waiting("out\x1b[2J", TerminalSize(columns=80, rows=10), "q quit")
    assert plain(lines[0]) == "no run yet in out?[2J; waiting. A run writes perf_callbacks/rank<k>.jsonl."
    assert len(lines) == 10
    for rows in (1, 3, 24):
        narrow = watch_frame.waiting("/data/" + "jobs" * 20, TerminalSize(columns=40, rows=rows))
        assert (len(narrow), max(map(len, map(plain, narrow))) <= 40) == (rows, True)


@pytest.mark.parametrize("rows", [12, 14, 16, 24])
def test_of_a_stack_the_innermost_lines_stay(rows):
    text = [plain(line) for line in seen("hang", 40, rows, "q quit")]
    heading = next(place for place, line in enumerate(text) if line.startswith("  stack of rank 2"))
    assert text[text.index("", heading) - 1] == "    /data/jobs/loader.py:41 fetch"
