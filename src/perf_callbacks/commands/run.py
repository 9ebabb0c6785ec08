"""`perf-callbacks run`: run a program, and measure the trainers in it."""

import argparse
from collections.abc import Sequence

SUMMARY: str = "run a program without changing it, and measure every trainer and Accelerate loop in it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [-h] [--profile[=STEPS]] [-m] TARGET [ARGS ...]"
    parser.epilog = (
        "TARGET is a Python file, a command such as trl, or with -m a module. Python processes that it starts are "
        "measured too. With torchrun or `accelerate launch`: `torchrun ... -m perf_callbacks.run TARGET ...`. "
        "--profile explains three steps from step 20, and --profile=auto slow steps: see the setting `profile`. "
        "PERF_CALLBACKS=0 runs the program without measuring. Exits with the program's status, and with 2 "
        "if there is no such program or a setting makes no sense."
    )
    parser.add_argument("-m", dest="module", action="store_true", help="TARGET is a module, as in python -m")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="TARGET [ARGS ...]")


def run(arguments: argparse.Namespace) -> int:
    from perf_callbacks.launch import run as program  # noqa: PLC0415 only this command needs the module

    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    return program.main(["-m", *words] if arguments.module else words)


def unparsed(words: Sequence[str]) -> Sequence[str]:
    """Insert `--` before `--profile`, which argparse would refuse and `launch.run` reads.

    >>> unparsed(["run", "--profile", "train.py"])
    ['run', '--', '--profile', 'train.py']
    """
    if words[:1] == ["run"] and words[1:2] and words[1].partition("=")[0] == "--profile":
        return ["run", "--", *words[1:]]
    return words
