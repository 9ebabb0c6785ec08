"""`perf-callbacks status`: show the programs that are measured here without code changes, and the reasons."""

import argparse
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from perf_callbacks.commands import autoload as command
from perf_callbacks.kernel.settings import config_file
from perf_callbacks.kernel.settings.config import ConfigError, printable
from perf_callbacks.kernel.settings.resolution import Settings, parse
from perf_callbacks.launch import accelerate_config, autoload
from perf_callbacks.report.layout import aligned

SUMMARY: str = "show which programs are measured here without code changes, and why others are not"

TREES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
"""Packages of Lightning. The name of each entry point group begins with the module."""

UNSET = "PERF_CALLBACKS=1 is not set"
ADVICE = """\
`perf-callbacks run TARGET ...` needs neither autoload nor the variable.
If the program's own code adds a callback, that callback measures instead."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "The answer holds for this Python and this environment. The command changes nothing."


def run(arguments: argparse.Namespace) -> int:  # noqa: ARG001 the command has no arguments
    settings = config_file.in_force(None, os.environ)
    value = os.environ.get(autoload.SWITCH)
    print(f"{autoload.SWITCH} is not set." if value is None else f"{autoload.SWITCH}={value} is set.")
    print(f"{command.state()}\n")
    if settings.config.enabled:
        print("\n".join(aligned(_rows())))
        without = no_effect()
        if without is not None:
            print(f"\n{without}")
        print(f"\n{ADVICE}")
    else:
        print("Nothing is measured: PERF_CALLBACKS switches it off.")
    values = settings_lines(settings)
    print("\n".join(["", f"Settings from outside: {'' if values else 'none.'}".rstrip(), *values, *settings.remarks]))
    print("\n".join(section(accelerate_config.default_path(os.environ))))
    return 0


def settings_lines(settings: Settings) -> list[str]:
    values = settings.shown
    return [printable(f"  {name}={values[name]} ({origin})") for name, origin in settings.origins.items()]


def no_effect() -> str | None:
    """Why PERF_CALLBACKS=1 has no effect on programs that start here."""
    if not autoload.asked() or any(state.startswith("measured") for _, state in _rows()):
        return None
    return f"{autoload.SWITCH}={os.environ[autoload.SWITCH]} has no effect here."


def section(path: Path | None) -> Iterator[str]:
    try:
        if path is None or not (installed("accelerate") and path.is_file()):
            return
        entries = accelerate_config.load(path).entries
        parse(entries)
    except (ConfigError, OSError) as error:
        yield f"\nThe section {accelerate_config.KEY} of accelerate's config can't be read: {error}"
        return
    if entries:
        yield "\nSettings for perf-callbacks launch, and wherever an armed program reads accelerate's config:"
    yield from (printable(f"  {entry.name}={entry.text} ({entry.where})") for entry in entries)


def _rows() -> Iterator[tuple[str, str]]:
    for name, package in (("Hugging Face Trainer", "transformers"), ("Accelerate loop", "accelerate")):
        yield name, _armed() if installed(package) else f"{package} is not installed"
    for package, tree in TREES.items():
        yield f"Trainer of {tree}", _by_entry_point(tree) if installed(package) else f"{package} is not installed"
    yield "other PyTorch loop", "not measured: use perf_callbacks.loop.measure"


def installed(package: str) -> bool:
    try:
        # Not `find_spec`, which finds any folder of that name, such as an uninstall's leftovers.
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _armed() -> str:
    if any(isinstance(finder, autoload.Finder) for finder in sys.meta_path):
        return f"measured, by {'perf-callbacks run' if autoload.RUN in os.environ else 'autoload'}"
    return f"not measured: {UNSET if command.files() else 'autoload is off'}"


def _by_entry_point(tree: str) -> str:
    group = metadata.entry_points(group=f"{tree}.callbacks_factory")
    if not any(entry.value.startswith("perf_callbacks.") for entry in group):
        return "not measured: no entry point; install perf_callbacks again"
    return "measured, by its entry point" if autoload.asked() else f"not measured: {UNSET}"
