"""Measure the callback's cost for one integration: `python -m perf_callbacks.launch.cost NAME SECONDS` prints JSON."""

import importlib
import logging
import sys
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from io import StringIO
from json import dumps

from perf_callbacks.kernel.clock import monotonic, perf_counter, process_time
from perf_callbacks.launch.cost.turns import Stopwatch, TrainingTurn, measure


def main(name: str, seconds: str) -> None:
    """Measure the callback's cost for an integration, and print the result as JSON."""
    logging.disable()
    warnings.simplefilter("ignore")
    train = importlib.import_module(f"perf_callbacks.launch.cost.{name}").train

    def turn(*, armed: bool) -> TrainingTurn:
        with tempfile.TemporaryDirectory() as directory:
            stopwatch = Stopwatch(perf_counter, process_time)
            train(directory, stopwatch, armed=armed)
            return stopwatch.turn()

    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        cost = measure(name, turn, float(seconds), monotonic)
    print(dumps(asdict(cost)))  # noqa: T201 the parent process reads it


if __name__ == "__main__":
    main(*sys.argv[1:])
