"""`perf-callbacks runs`: list the runs below a directory."""

import argparse
import json
import shutil
import sys

from perf_callbacks.commands import show
from perf_callbacks.report import run_list
from perf_callbacks.report.run_reader import RunReader

SUMMARY: str = "list the runs below a directory, with state, step time, MFU and verdict"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "State: ended; failed, with a reason; running; hangs; or silent: no summary at the end, and no process or no "
        "sign of life for 30 seconds. A terminal cuts lines at its width, a pipe gets whole lines. Reads only the "
        "lowest rank, and only both ends of its journal."
    )
    show.add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    runs = RunReader(complain=show.to_stderr).below(arguments.directory)
    if arguments.json:
        print(json.dumps([run_list.facts(run) for run in runs], indent=2, allow_nan=False))
        return 0
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(run_list.cut(run_list.table(runs, arguments.directory), columns)))
    return 0
