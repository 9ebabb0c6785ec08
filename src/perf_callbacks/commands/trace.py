"""`perf-callbacks trace`: write a run as trace events, for a browser's tracing page."""

import argparse
from pathlib import Path

from perf_callbacks.commands import report
from perf_callbacks.kernel.settings.config import printable
from perf_callbacks.report import report_file
from perf_callbacks.report.trace import trace

SUMMARY: str = "write the steps of all ranks as trace events, for ui.perfetto.dev or chrome://tracing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Each rank is a process, each stage of a step a slice. A long run makes a large file: use --steps."
    report.add_source(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="file of the trace (default: trace.json beside the journals)"
    )


def run(arguments: argparse.Namespace) -> int:
    within = report.steps(arguments.steps)
    fits = report_file.fits(arguments.directory)
    fit = report_file.chosen(fits, arguments.fit, within)
    path = arguments.output or report_file.default_path(arguments.directory, "trace.json")
    report_file.write_parts(path, trace(fit, within))
    print(printable(str(path)))
    return 0
