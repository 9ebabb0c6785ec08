"""`perf-callbacks config`: write settings, from arguments or answers, into the config file of accelerate."""

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path

from perf_callbacks.commands.try_program import INTERRUPTED
from perf_callbacks.kernel.settings.config import ConfigError, PerfConfig, rules
from perf_callbacks.kernel.settings.in_force import FileEntry, parse
from perf_callbacks.launch import accelerate_config
from perf_callbacks.launch.accelerate_config import AccelerateConfig

SUMMARY: str = "write settings into accelerate's config, for perf-callbacks launch"

REFUSED = """\
With this section, `accelerate launch` and the other commands of accelerate refuse the file: start training with
perf-callbacks launch. Or keep the settings in a separate file that PERF_CALLBACKS_CONFIG names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Without FIELD=VALUE and --unset, the command asks for each field. It changes only the section perf_callbacks: "
        "all other lines of the file stay as they are. accelerate itself refuses a file with this section: start "
        "training with perf-callbacks launch."
    )
    parser.add_argument(
        "--config_file", type=Path, metavar="FILE", help="the config file (default: accelerate's default config)"
    )
    parser.add_argument("--unset", action="append", default=[], metavar="FIELD", help="remove a field")
    parser.add_argument("assignments", nargs="*", metavar="FIELD=VALUE", help="set a field, as in window=20")


def run(arguments: argparse.Namespace) -> int:
    """Edit the config file, and print its section `perf_callbacks`."""
    config = accelerate_config.load(arguments.config_file or default_file())
    if arguments.assignments or arguments.unset:
        values = parse([_assignment(text) for text in arguments.assignments])
    elif sys.stdin is not None and sys.stdin.isatty():
        try:
            values = _ask(config)
        except (KeyboardInterrupt, EOFError):
            print("\nNothing was written.")
            return INTERRUPTED
    else:
        raise ConfigError("without a terminal the command can't ask: give FIELD=VALUE, such as window=20.")
    text = accelerate_config.edited(config, values, {*arguments.unset} - {*values})
    if config.key is None and values:
        print(REFUSED)
    if text != config.text:
        accelerate_config.save(config.path, text)
    entries = [entry for entry in config.entries if entry.name not in {*values, *arguments.unset}]
    shown = {entry.name: entry.text for entry in entries} | values
    fields = ", ".join(f"{name}={value}" for name, value in shown.items())
    print(f"{accelerate_config.KEY} in {config.path}: {fields or 'nothing'}")
    return 0


def default_file() -> Path:
    """Return the path of accelerate's default config. Raise `ConfigError` if there is no such file."""
    path = accelerate_config.default_path(os.environ)
    if path is None or not path.is_file():
        raise ConfigError(
            f"there is no {path or 'config'} yet: run `accelerate config` first, or name a --config_file."
        )
    return path


def _assignment(text: str) -> FileEntry:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"got {text!r}, wanted FIELD=VALUE, such as window=20.")
    return FileEntry(name, value, "the command line")


def _ask(config: AccelerateConfig) -> dict[str, object]:
    """Ask for the value of each field until the answer is valid. An empty answer keeps the old value."""
    print(f"Settings for {config.path}. Enter keeps the value in brackets.")
    now = asdict(PerfConfig()) | parse(config.entries)
    values: dict[str, object] = {}
    for name, rule in rules().items():
        text = input(f"{name} ({rule.wanted}) [{_shown(now[name])}]: ").strip()
        while text and not rule.allows(rule.parse(text)):
            text = input(f"  got {text!r}, wanted {rule.wanted}: ").strip()
        if text and rule.parse(text) != now[name]:
            values[name] = rule.parse(text)
    return values


def _shown(value: object) -> object:
    return str(value).lower() if value is None or isinstance(value, bool) else value
