"""`perf-callbacks report`: write one HTML page about a run, from the journals of all ranks."""

import argparse
import re
import sys
from pathlib import Path

from perf_callbacks.kernel.settings.config import ConfigError, printable
from perf_callbacks.report import report_file
from perf_callbacks.report.history import Attempt
from perf_callbacks.report.layout import listed

SUMMARY: str = "write one HTML page about a run, from the journals of all ranks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "The page needs no network, and no server: open it in a browser."
    add_source(parser)
    parser.add_argument(
        "--with",
        dest="other",
        type=Path,
        metavar="DIR",
        help="a second run: draw its step times in the same chart, and show its figures beside",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="file of the page (default: report.html beside the journals)"
    )


def add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of the run, or one journal")
    parser.add_argument(
        "--fit", type=int, default=0, metavar="NUMBER", help="number of the fit, from 1 (default: the last fit)"
    )
    parser.add_argument("--steps", metavar="FIRST-LAST", help="only these steps, such as 200-400")


def run(arguments: argparse.Namespace) -> int:
    within = steps(arguments.steps)
    fits = report_file.fits(arguments.directory)
    path = arguments.output or report_file.default_path(arguments.directory, report_file.NAME)
    other = None if arguments.other is None else report_file.fits(arguments.other)[-1]
    report_file.write(fits, arguments.fit, path, within, other)
    print(printable(str(path)))
    return 0


def last(directory: Path) -> list[Attempt]:
    """Print which ranks have no journal."""
    fit, name = report_file.fits(directory)[-1], printable(str(directory))
    if fit.missing:
        print(f"{name}: ranks without a journal are left out: {listed(fit.missing)}", file=sys.stderr)
    full = next((attempt.full for attempt in fit.last if attempt.full), "")
    if full:
        print(f"{name}: {full}", file=sys.stderr)
    return fit.last


def steps(text: str | None) -> range | None:
    """With the first and the last step.

    >>> steps("200-400")
    range(200, 401)
    """
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d{1,15})\s*[-:]\s*(\d{1,15})\s*", text)
    if match is None or int(match[1]) > int(match[2]):
        raise ConfigError(f"steps: got {text!r}, wanted the first and the last one, such as 200-400.")
    return range(int(match[1]), int(match[2]) + 1)
