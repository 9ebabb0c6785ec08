"""`perf-callbacks watch`: show a run live in a terminal, or write its figures for Prometheus."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from perf_callbacks.commands import show
from perf_callbacks.commands.outcomes import ExitStatus
from perf_callbacks.commands.watched_run import WatchedRun
from perf_callbacks.kernel.clock import sleep
from perf_callbacks.kernel.records import atomic_file
from perf_callbacks.kernel.records.followed_journal import FollowedJournals
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.report import prometheus, watch_frame
from perf_callbacks.report.rank_pace import Paces
from perf_callbacks.report.recorded_run import RecordedRun
from perf_callbacks.report.run_reader import RunReader
from perf_callbacks.report.styled_lines import Line, encodable, plain
from perf_callbacks.report.watch_frame import TerminalSize

if TYPE_CHECKING:
    from perf_callbacks.commands.watch_screen import Screen

SUMMARY: str = "watch a run live in a terminal, from its files alone, or write its figures for Prometheus"

FRAME_SECONDS = 0.5

TEXTFILE_SECONDS = 5.0
"""New steps reach the journal on the disk within five seconds too."""

NOTEBOOK = "JPY_PARENT_PID"
"""Jupyter sets it for its kernels, and shell commands in a notebook inherit it."""

READABLE = 0o644
"""Let node_exporter read the file, although it runs as another user."""

UNENDED = {"running", "hangs", "silent"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Reads files alone: the training isn't asked, and may run on another machine. Shows the newest run in DIR, or "
        "else below DIR, and waits if there is none. Keys: q quits, n shows the next older run, p the previous one. "
        "A pipe or a dumb terminal gets one frame."
    )
    show.add_directory(parser)
    parser.add_argument("--once", action="store_true", help="print one frame, or write the textfile once, and exit")
    parser.add_argument("--run", default="", metavar="ID", help="watch the run whose id begins so, not the newest")
    parser.add_argument(
        "--textfile",
        type=Path,
        metavar="FILE",
        help="write metrics for node_exporter's textfile collector until the run ends, and show nothing",
    )


def run(arguments: argparse.Namespace) -> int:
    top, path = arguments.directory, arguments.textfile
    reader = RunReader(FollowedJournals().read)
    watched, paces = WatchedRun(top, reader, arguments.run), Paces()
    try:
        if path is not None and arguments.once:
            write(_prom(path), _found(watched, arguments), paces)
            return 0
        if path is not None:
            return keep(watched, _prom(path), paces)
        if arguments.once or not _redraws():
            _print(_found(watched, arguments), paces)
            return 0
        from perf_callbacks.commands.watch_screen import Screen  # noqa: PLC0415 only this command imports rich

        with Screen() as screen:
            return live(watched, paces, screen, str(top))
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED


def keep(watched: WatchedRun, path: Path, paces: Paces, pause: Callable[[float], None] = sleep) -> int:
    """Write the file for Prometheus until the watched run ends. A run that ended earlier doesn't count."""
    went_on = False
    while True:
        run = watched.look()
        if run is not None:
            write(path, run, paces)
            goes_on = run.state in UNENDED
            if went_on and not goes_on:
                return 0
            went_on = goes_on
        pause(TEXTFILE_SECONDS)


def write(path: Path, run: RecordedRun, paces: Paces) -> None:
    """Raise `ConfigError` if the file can't be written."""
    text = prometheus.render(run, paces.current(run))
    try:
        atomic_file.replace(path, text.encode(errors="replace"), READABLE)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def live(watched: WatchedRun, paces: Paces, screen: "Screen", place: str) -> int:
    drawn: tuple[TerminalSize, list[Line]] | None = None
    while True:
        run, size = watched.look(), screen.size()
        footer = keys(watched.count)
        if run is None:
            lines = watch_frame.waiting(place, size, footer)
        else:
            lines = watch_frame.frame(run, paces.current(run), size, footer)
        if (size, lines) != drawn:
            screen.draw(lines)
            drawn = size, lines
        for key in screen.keys(FRAME_SECONDS):
            if key == "q":
                return 0
            watched.choose({"n": 1, "p": -1}.get(key, 0))


def keys(runs: int) -> str:
    return f"q quit   n older run   p newer run   {runs:,} runs here" if runs > 1 else "q quit"


def _found(watched: WatchedRun, arguments: argparse.Namespace) -> RecordedRun:
    run = watched.look()
    if run is None:
        which = f"no run whose id begins with {arguments.run!r}" if arguments.run else "no run"
        raise ConfigError(f"{arguments.directory}: {which} in or below this directory.")
    return run


def _prom(path: Path) -> Path:
    if path.suffix != ".prom":
        raise ConfigError(f"--textfile {path}: node_exporter reads only files whose names end with .prom")
    return path


def _redraws() -> bool:
    """True for a terminal on which a new frame can replace the previous frame.

    In a notebook, `!perf-callbacks watch` also writes to a terminal. But a notebook doesn't move the cursor, so frames
    would pile up.
    """
    dumb = os.environ.get("TERM", "") in {"dumb", "unknown"} or NOTEBOOK in os.environ
    return sys.stdout.isatty() and not dumb


def _print(run: RecordedRun, paces: Paces) -> None:
    lines = watch_frame.frame(run, paces.current(run), TerminalSize(columns=shutil.get_terminal_size().columns))
    if not sys.stdout.isatty():
        print("\n".join(map(plain, encodable(lines, sys.stdout.encoding or "utf-8"))))
        return
    from perf_callbacks.commands.watch_screen import print_lines  # noqa: PLC0415 only this command imports rich

    print_lines(lines)
