"""`perf-callbacks scaling`: compare runs on different numbers of devices."""

import argparse
import json
from pathlib import Path

from perf_callbacks.commands import report
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.scaling import text
from perf_callbacks.scaling.curve import curve

SUMMARY: str = "compare runs on different numbers of devices: efficiency, and the part of a step that grows"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Reads the last attempt of the last fit, of all ranks. Runs on the same number of devices count as one point. "
        "The efficiency is the work per second and device, divided by that of the runs on the fewest devices. Exits "
        "with 2 if there is no journal, fewer than ten measured steps, or an impossible value, and if the runs are not "
        "alike."
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="output directories of the runs")
    parser.add_argument(
        "--baseline",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="output directories of the runs to compare with (default: the runs on the fewest devices)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    runs, baseline = [[report.last(path) for path in side] for side in (arguments.runs, arguments.baseline)]
    try:
        result = curve(runs, baseline)
        if arguments.json:
            shown = json.dumps(text.values(result), indent=2, allow_nan=False)
        else:
            shown = text.render(result, terminal.columns())
    except (ArithmeticError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("Not decided: a journal holds impossible values.") from None
    print(shown)
    return 0
