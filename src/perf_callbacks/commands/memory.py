"""`perf-callbacks memory`: show the parts of a recorded run's memory, and whether memory leaks."""

import argparse
import json
from pathlib import Path

from perf_callbacks.commands import report
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.report import memory_table

NAME: str = "memory"
SUMMARY: str = "show where the memory of a recorded run went, and if it leaks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = (
        "Reads the last attempt of the last fit, of all ranks. "
        "Exits with 2 if there is no journal, or if a journal holds an impossible value."
    )
    parser.add_argument("directory", type=Path, help="output directory of a run, or a journal")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the parts of memory of each rank."""
    fits = report.last(arguments.directory)
    try:
        if arguments.json:
            text = json.dumps([memory_table.facts(fit) for fit in fits], indent=2, allow_nan=False)
        else:
            columns = terminal.columns()
            text = "\n".join([memory_table.render(fit, columns) for fit in fits])
    except (ArithmeticError, ValueError):
        raise ConfigError(f"{arguments.directory}: the journal holds impossible values") from None
    print(text)
    return 0
