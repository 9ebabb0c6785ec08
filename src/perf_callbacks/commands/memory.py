"""`perf-callbacks memory`: show the parts of a recorded run's memory, or estimate them from a config.json."""

import argparse
import json
from pathlib import Path

from perf_callbacks.commands import memory_estimate, report
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.report import memory_table

SUMMARY: str = "show where the memory of a recorded run went, and if it leaks; or estimate it from a config.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Of a directory, reads the last attempt of the last fit, of all ranks. "
        "Exits with 2 if there is no journal, or if a journal holds an impossible value."
    )
    parser.add_argument(
        "path", type=Path, metavar="DIR_OR_CONFIG", help="output directory of a run, a journal, or a config.json"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--limit-gb", type=float, help="memory of the device: print what fits (default for a run: what was left)"
    )
    parser.add_argument("--batch", type=int, help="samples in a micro-batch (default for a config.json: 1)")
    memory_estimate.add_arguments(parser.add_argument_group("for a config.json"))


def run(arguments: argparse.Namespace) -> int:
    for name in ("limit_gb", "batch"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value <= memory_estimate.LARGEST:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option}: got {value:g}, wanted a number from 1 to {memory_estimate.LARGEST:,}.")
    if arguments.path.suffix == ".json":
        return memory_estimate.run(arguments)
    fits = report.last(arguments.path)
    wanted = arguments.limit_gb, arguments.batch
    try:
        if arguments.json:
            text = json.dumps([memory_table.facts(fit, *wanted) for fit in fits], indent=2, allow_nan=False)
        else:
            columns = terminal.columns()
            text = "\n".join([memory_table.render(fit, columns, *wanted) for fit in fits])
    except (ArithmeticError, ValueError):
        raise ConfigError(f"{arguments.path}: the journal holds impossible values") from None
    print(text)
    return 0
