"""`perf-callbacks show`: show the card of a run, which may still be running, or have been killed."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from perf_callbacks.commands.outcomes import JSON_SCHEMA
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.records.codec import pack
from perf_callbacks.kernel.settings.config import printable
from perf_callbacks.report import run_card
from perf_callbacks.report.recorded_run import RecordedRun
from perf_callbacks.report.run_reader import RunReader

SUMMARY: str = "show the card of a run that ended, goes on, hangs or was killed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Reads files alone: the training isn't asked, and may run on another machine. Shows the newest run in DIR, or "
        "else the newest run below DIR. Exits with 2 if there is no run."
    )
    add_directory(parser)
    parser.add_argument("--all", action="store_true", help="show all runs in and below DIR, the newest first")
    parser.add_argument(
        "--json", action="store_true", help="print JSON: the state, the run and its summary with findings"
    )


def add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=Path(),
        metavar="DIR",
        help="output directory of a run, a directory above, or a journal (default: the working directory)",
    )


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def run(arguments: argparse.Namespace) -> int:
    top, reader = arguments.directory, RunReader(complain=to_stderr)
    runs = reader.below(top) if arguments.all else reader.nearest(top)
    if not arguments.all:
        if len(runs) > 1:
            to_stderr(f"{printable(str(top))}: the newest of {len(runs):,} runs. All: perf-callbacks runs")
        runs = runs[:1]
    whole = [reader.whole(run) for run in runs] if top.is_dir() else runs
    if arguments.json:
        facts = [_facts(run) for run in whole]
        print(json.dumps(facts if arguments.all else facts[0], indent=2, allow_nan=False))
    else:
        columns = terminal.columns()
        print("\n\n".join([run_card.render(run, columns) for run in whole]))
    return 0


def _facts(run: RecordedRun) -> dict[str, Any]:
    summary = run.summary
    return {
        "schema": JSON_SCHEMA,
        **run_card.facts(run),
        "notes": [*run_card.notes(run)],
        "run": json.loads(pack(run.lead.run)),
        "summary": None if summary is None else json.loads(pack(summary)),
    }
