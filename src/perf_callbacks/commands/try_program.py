"""`perf-callbacks try`: run a program several times, and measure what each remedy wins."""

import argparse
import json
import math
import signal
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from perf_callbacks.commands.outcomes import ExitStatus
from perf_callbacks.kernel.settings.config import ConfigError, printable

if TYPE_CHECKING:
    from perf_callbacks.trials.text import TrialResults

Number = TypeVar("Number", int, float)

SUMMARY: str = "run a program under each remedy of its verdict, and measure the gains"

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")

BAR = 20

NOTHING = "Its verdict calls for nothing that can be tried from outside."

ANYWAY = "--only names remedies to try anyway."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from perf_callbacks.trials.remedies import GROUPS  # noqa: PLC0415 imports little

    parser.usage = "%(prog)s [-h] [--steps N] [--rounds R] [--only REMEDY,...] [--yes] [--json] [-m] TARGET [ARGS ...]"
    parser.epilog = (
        "TARGET is as in `perf-callbacks run`; a launcher such as `torchrun --nproc-per-node 2 train.py` is one trial. "
        "A trial leaves the program right after its last measured step. It writes to a scratch directory; a program "
        "that writes elsewhere is left before it does. Exits with 1 if the program can't be tried."
    )
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="least measured steps of a turn (60)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="least seconds of the measured steps of a turn (10)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="R", help="turns of each setting (3)")
    parser.add_argument(
        "--only", default="", metavar="REMEDY,...", help=f"remedies to try, needed or not: {', '.join(GROUPS)}"
    )
    parser.add_argument("--yes", action="store_true", help="go on if the program writes in its steps, or resumes")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("-m", dest="module", action="store_true", help="TARGET is a module, as in python -m")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="TARGET [ARGS ...]")


def run(arguments: argparse.Namespace) -> int:
    from perf_callbacks.kernel.process.processes import allowed_cpus  # noqa: PLC0415 only this command needs these
    from perf_callbacks.launch import run as program, tries  # noqa: PLC0415 as above
    from perf_callbacks.trials import results, text  # noqa: PLC0415 as above

    if not arguments.words:
        raise ConfigError("nothing to try. usage: perf-callbacks try [-m] TARGET [ARGS ...]")
    try:
        command = program.find(["-m", *arguments.words] if arguments.module else arguments.words)
    except LookupError as error:
        raise ConfigError(printable(error.args[0])) from None
    stop, progress = Stop(), Progress()
    trial = tries.Tries(
        command=command,
        steps=_positive("steps", arguments.steps),
        seconds=_positive("seconds", arguments.seconds),
        rounds=_positive("rounds", arguments.rounds),
        only=_groups(arguments.only),
        yes=arguments.yes,
        cpus=allowed_cpus() or 1,
        stopped=lambda: stop.asked,
        say=progress.say,
        show=progress.show,
    )
    progress.say(_before(trial.result.program, trial.rounds, trial.seconds))
    status = 0
    with stop:
        try:
            trial.run()
        except tries.RefusedError as error:
            progress.say(f"perf-callbacks try: {printable(str(error))}.")
            status = 1
        result = trial.result
        progress.end()
        if status and not result.rounds:
            return status
        results.store(result)
        if arguments.json:
            print(json.dumps(text.as_json(result)))
        else:
            print("\n".join(map(printable, _shown(text.lines(result), result))))
    return ExitStatus.INTERRUPTED if result.interrupted else status


def _shown(lines: Iterable[str], result: "TrialResults") -> Iterable[str]:
    from perf_callbacks.report import cards  # noqa: PLC0415 only this command needs it

    if result.candidates or result.interrupted:
        yield from lines
    else:
        yield f"{NOTHING if result.short is None else cards.too_short(*result.short)} {ANYWAY}"
    yield ""
    runs = f"{result.launches + 1} {'runs' if result.launches else 'run'}"
    yield f"{runs} in {result.seconds / 60:.1f} min{', interrupted' if result.interrupted else ''}."


def _before(program: str, rounds: int, seconds: float) -> str:
    return (
        f"perf-callbacks try: runs {program} once for its verdict, then {rounds} times as it is, under each remedy and "
        f"under all that help, each for {seconds:g} s of steps or more. Trials write to a scratch directory and run "
        "nothing after their last step. What C code, child processes and the network do can't be prevented."
    )


def _positive(name: str, number: Number) -> Number:
    if not (number > 0 and math.isfinite(number)):
        raise ConfigError(f"--{name}: got {number}, wanted a number above 0.")
    return number


def _groups(names: str) -> list[str]:
    from perf_callbacks.trials.remedies import GROUPS  # noqa: PLC0415 imports little

    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in GROUPS:
            raise ConfigError(f"--only: got {printable(name)}, wanted some of {', '.join(GROUPS)}.")
    return wanted


class Stop:
    """Sets a flag on Ctrl-C, SIGTERM or SIGHUP, so that the command can kill all processes of its run and then end."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for name in SIGNALS:
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._before[number] = signal.signal(number, self._ask)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        self.asked = True


class Progress:
    """Progress line on the terminal; none if stderr is not a terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._width = 0

    def say(self, sentence: str) -> None:
        self.end()
        print(printable(sentence), file=sys.stderr, flush=True)

    def show(self, part: float, run: str) -> None:
        if self._terminal:
            line = f"[{'#' * round(BAR * part):-<{BAR}}] {run}"
            print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(line)

    def end(self) -> None:
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0
