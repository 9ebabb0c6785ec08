"""`perf-callbacks compare`: compare new runs with old runs."""

import argparse
import json
import math
from pathlib import Path

from perf_callbacks.commands import report
from perf_callbacks.commands.outcomes import ExitStatus
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.report import comparison, comparison_text

SUMMARY: str = "compare recorded runs, metric by metric, and say whether the new ones are slower"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Reads the last attempt of the last fit, of all ranks. tokens/s decides, or else samples/s, or else step_time. "
        "If this metric shows no change, quick steps decide. Exits with 1 if B is slower than A by at least PERCENT, "
        "and chance doesn't explain it; with 2 if there is no journal, fewer than ten measured steps, or an impossible "
        "value, and if the runs are not alike or the machine's load may explain the result."
    )
    parser.add_argument("a", type=Path, nargs="?", metavar="A", help="output directory of the old run")
    parser.add_argument("b", type=Path, nargs="?", metavar="B", help="output directory of the new run")
    parser.add_argument(
        "--base", type=Path, nargs="+", default=[], metavar="A", help="output directories of several old runs"
    )
    parser.add_argument(
        "--new", type=Path, nargs="+", default=[], metavar="B", help="output directories of several new runs"
    )
    parser.add_argument(
        "--fail-over",
        type=_percent,
        default=5.0,
        metavar="PERCENT",
        help="how much longer steps must take to count as slower (default 5)",
    )
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text", help="default: text")


def run(arguments: argparse.Namespace) -> int:
    first, second = [[report.last(path) for path in side] for side in _sides(arguments)]
    try:
        result = comparison.compare(first, second, fail_over=arguments.fail_over / 100)
    except (ArithmeticError, ValueError):
        raise ConfigError("not decided: a journal holds impossible values") from None
    if arguments.format == "json":
        print(json.dumps(comparison_text.values(result), indent=2))
    else:
        markdown = arguments.format == "markdown"
        print(comparison_text.markdown(result) if markdown else comparison_text.text(result, terminal.columns()))
    if result.decided_by is None:
        return ExitStatus.UNKNOWN
    return ExitStatus.REGRESSION if result.regression else 0


def _sides(arguments: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """The old and the new runs. Raise `ConfigError` if one of the two sides is missing or given twice."""
    pair = [path for path in (arguments.a, arguments.b) if path is not None]
    base, new = arguments.base, arguments.new
    if len(pair) == 2 and not base and not new:  # noqa: PLR2004
        return pair[:1], pair[1:]
    if base and new and not pair:
        return base, new
    raise ConfigError("wanted the old run and the new run, or --base A1 A2 A3 --new B1 B2 B3.")


def _percent(word: str) -> float:
    """With or without a percent sign."""
    with suppress(ValueError):
        value = float(word.removesuffix("%"))
        if math.isfinite(value) and value >= 0:
            return value
    raise argparse.ArgumentTypeError(f"got {word}, wanted a percentage such as 5")
