"""The commands of `perf-callbacks`. Each command has its own file."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from perf_callbacks.commands import (
    autoload,
    check,
    compare,
    demo,
    flops,
    goodput,
    launch,
    memory,
    profile,
    report,
    run,
    runs,
    scaling,
    shapes,
    show,
    status,
    trace,
    try_program,
    watch,
)
from perf_callbacks.commands.outcomes import ExitStatus
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.version import __version__


class Command(Protocol):
    """A command's module."""

    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the command's arguments."""

    def run(self, arguments: argparse.Namespace, /) -> int:
        """Return the exit status. Raise `ConfigError` for settings that make no sense."""
        ...


COMMANDS: dict[str, Command] = {
    "demo": demo,
    "run": run,
    "launch": launch,
    "try": try_program,
    "status": status,
    "autoload": autoload,
    "check": check,
    "flops": flops,
    "shapes": shapes,
    "show": show,
    "watch": watch,
    "runs": runs,
    "report": report,
    "compare": compare,
    "scaling": scaling,
    "trace": trace,
    "profile": profile,
    "memory": memory,
    "goodput": goodput,
}
"""In the order in which the help lists them."""

GONE = {
    "config": "write the section perf_callbacks into accelerate's config by hand, as docs/accelerate-config.md shows",
    "check --cost": "docs/benchmarks.md has the cost; `python benchmarks/overhead.py` measures it from a checkout",
    "flops --config": "give the path of config.json without --config",
}
"""Maps a command, or a command with an option, that no longer exists to what to do instead."""


def main(words: Sequence[str] | None = None) -> int:
    try:
        try:
            return _run(words)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # without this, Python complains at exit about unwritten output
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1 if sys.stdout is None else sys.stdout.fileno())
        return ExitStatus.PIPE_CLOSED


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="perf-callbacks", allow_abbrev=False)
    whole.add_argument("--version", action="version", version=f"perf_callbacks {__version__}")
    choices = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        chosen = choices.add_parser(name, help=command.SUMMARY, description=command.SUMMARY, allow_abbrev=False)
        command.add_arguments(chosen)
        chosen.set_defaults(command=command, parser=chosen)
    return whole


def _run(words: Sequence[str] | None) -> int:
    words = sys.argv[1:] if words is None else words
    for command, instead in GONE.items():
        name, *options = command.split()
        if words[:1] == [name] and {*options} <= {word.partition("=")[0] for word in words}:
            print(f"perf-callbacks {command} is gone: {instead}.", file=sys.stderr)
            return 2
    arguments = parser().parse_args(run.unparsed(words))
    command, chosen = arguments.command, arguments.parser
    try:
        return int(command.run(arguments))
    except ConfigError as error:
        print(f"{chosen.prog}: {error}", file=sys.stderr)
        return 2
