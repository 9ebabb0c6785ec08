"""`perf-callbacks demo`: train a small model with a hidden fault, and apply the remedy that the verdict names."""

import argparse
import json
import math
import sys
import tempfile
import webbrowser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf_callbacks.commands.outcomes import JSON_SCHEMA, ExitStatus
from perf_callbacks.commands.try_program import Stop
from perf_callbacks.kernel.plural import plural
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.settings.config import ConfigError, printable
from perf_callbacks.report.layout import wrapped

if TYPE_CHECKING:
    from perf_callbacks.launch.demo.two_runs import TwoRuns

SUMMARY: str = "train a small model with a hidden fault, read the verdict, and measure what its remedy gains"

LEAST_SECONDS = 11.0
"""A verdict needs ten seconds of steps after the first steps."""

SECONDS = 24.0
"""Of the first run. The faster second run takes the same steps, and should still last ten seconds for a verdict."""

MOST_RANKS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Trains on the CPU, in a new temporary directory, which stays. Needs no network and nothing but this package. "
        "Settings from PERF_CALLBACKS variables don't apply. Exits with 1 if the verdict doesn't name the fault, as on "
        "a busy machine."
    )
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="processes, of which the last is slow (1)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help=f"seconds of the first run's steps ({SECONDS:g})"
    )
    parser.add_argument("--open", action="store_true", help="open the report of both runs in a browser")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object; the rest to stderr")


def run(arguments: argparse.Namespace) -> int:
    from perf_callbacks.kernel.process.processes import allowed_cpus  # noqa: PLC0415 only this command needs these
    from perf_callbacks.launch.demo import two_runs  # noqa: PLC0415 as above

    ranks, seconds, cpus = arguments.ranks, arguments.seconds, allowed_cpus()
    if not 1 <= ranks <= MOST_RANKS:
        raise ConfigError(f"--ranks: got {ranks}, wanted 1 to {MOST_RANKS}.")
    if not LEAST_SECONDS <= seconds < math.inf:
        raise ConfigError(f"--seconds: got {seconds:g}, wanted {LEAST_SECONDS:g} or more: shorter runs get no verdict.")
    directory = Path(tempfile.mkdtemp(prefix="perf-callbacks-demo-"))
    say = partial(_say, file=sys.stderr if arguments.json else sys.stdout)
    stop = Stop()
    train = partial(two_runs.start, directory, stopped=lambda: stop.asked, output=2 if arguments.json else None)
    pair = two_runs.TwoRuns(directory=directory, ranks=ranks, train=train, say=say)
    status = 0
    with stop:
        try:
            play(pair, seconds, cpus)
        except two_runs.UnfinishedError as error:
            say(printable(str(error)))
            status = 1
        except two_runs.StoppedError:
            say(f"Interrupted. {directory} has the journals so far: `perf-callbacks show` reads them.")
            status = ExitStatus.INTERRUPTED
    if arguments.json:
        print(json.dumps(facts(pair, cpus), indent=2, allow_nan=False))
    if arguments.open and pair.report is not None:
        webbrowser.open(pair.report.as_uri())
    return status


def play(pair: "TwoRuns", seconds: float, cpus: int | None) -> None:
    number = "" if cpus is None else f", on {cpus} CPU{'s' * (cpus != 1)}"
    who = "1 process" if pair.ranks == 1 else f"{pair.ranks} ranks"
    pair.say(
        f"A small GPT trains for about {seconds:g} s as {who}{number}. A fault is hidden in the program. Then come the "
        f"same steps with the remedy. Everything is in {pair.directory}."
    )
    if cpus is not None and cpus < max(2, pair.ranks):
        pair.say(_few_cpus(cpus, pair.ranks))
    pair.run(seconds)
    for sentence in pair.conclusion():
        pair.say(sentence)
    pair.say(f"The report of both runs: {pair.write_report()}")


def _few_cpus(cpus: int, ranks: int) -> str:
    number = plural(cpus, "CPU")
    if ranks == 1:
        return (
            f"With {number}, loader workers would only take time from the training. On two CPUs, the remedy is another."
        )
    return f"{ranks} ranks share {number}, so steps wait for a CPU too. The verdict may name the missing CPU first."


def facts(pair: "TwoRuns", cpus: int | None) -> dict[str, Any]:
    """For JSON."""
    from perf_callbacks.report.cards import verdict  # noqa: PLC0415 only this command needs the module

    finding = pair.finding
    return {
        "schema": JSON_SCHEMA,
        "directory": str(pair.directory),
        "report": None if pair.report is None else str(pair.report),
        "ranks": pair.ranks,
        "cpus": cpus,
        "fault": pair.fault,
        "remedy": None if finding is None else finding.remedy,
        "promised_share": None if finding is None else [finding.low, finding.share],
        "gain": pair.gain,
        "runs": [
            {
                "directory": str(run.directory),
                "options": [*run.options],
                "steps": run.summary.steps,
                "step_seconds": run.summary.step_time,
                "no_cpu_share": None if run.summary.cpu is None else run.summary.cpu.no_cpu_share,
                "verdict": verdict(run.summary) or None,
            }
            for run in pair.runs
        ],
    }


def _say(paragraph: str, file: Any) -> None:
    """A shell command stays on one line, so that users can copy it."""
    lines = [paragraph] if paragraph.startswith("$ ") else wrapped(paragraph, indent="", width=terminal.columns())
    print("\n" + "\n".join(lines), file=file, flush=True)
