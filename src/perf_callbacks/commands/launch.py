"""`perf-callbacks launch`: `accelerate launch` with the callback armed and settings from accelerate's config.

Accelerate parses its own flags and launches in this process. Instead of the script, accelerate runs
`-m perf_callbacks.run`, which then runs the script. Usually, accelerate refuses a config with the section
`perf_callbacks`. This command makes accelerate skip the section.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.kernel.settings.in_force import switched_off
from perf_callbacks.launch import accelerate_config, autoload

SUMMARY: str = "accelerate launch, with the callback armed and settings from the section perf_callbacks of its config"

RUN = "perf_callbacks.run"
"""The module that arms the callback and runs a script or module."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [--config_file FILE] [flags of accelerate launch] SCRIPT [its arguments]"
    parser.epilog = "The flags are those of `accelerate launch -h`."
    parser.prefix_chars = "\0"  # each word with a dash belongs to accelerate or the script
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Launch the script as `accelerate launch` does, and return when all ranks have ended."""
    if not arguments.words or arguments.words[0] in {"-h", "--help"}:
        arguments.parser.print_help()
        return 0
    try:
        from accelerate.commands import launch  # type: ignore[import-untyped] # noqa: PLC0415
        from accelerate.commands.config import config_args, default_config_file  # type: ignore[import-untyped] # noqa: PLC0415
    except ImportError:
        raise ConfigError("accelerate is not installed: pip install accelerate.") from None
    wanted = launch.launch_command_parser().parse_args(arguments.words)
    path = Path(wanted.config_file or default_config_file)
    config = accelerate_config.load(path) if wanted.config_file or path.is_file() else None
    content: dict[str, Any] = {} if config is None else accelerate_config.without_section(config)
    if not switched_off(os.environ):
        os.environ.update(accelerate_config.exports(() if config is None else config.entries, os.environ))
        _arm(wanted, content)
    unread = wanted.cpu and not wanted.config_file  # with --cpu, accelerate doesn't read its default config
    if not (config is None or not config.has_section or content or unread):
        raise ConfigError(f"{path} holds settings of perf_callbacks only: run `accelerate config` first.")
    autoload.accept_section(config_args.BaseConfig)
    launch.launch_command(wanted)
    return 0


def _arm(wanted: argparse.Namespace, content: Mapping[str, Any]) -> None:
    """Make accelerate run the script through the module `perf_callbacks.run`."""
    tpu = wanted.tpu or content.get("distributed_type") == "XLA"
    if tpu or content.get("compute_environment") == "AMAZON_SAGEMAKER":  # these launchers can't run a module
        print("perf-callbacks launch: on TPUs and SageMaker, add the callback to the script yourself.", file=sys.stderr)
        return
    script = wanted.training_script
    if script.endswith(".py") and not (wanted.module or wanted.no_python or Path(script).exists()):
        raise ConfigError(f"there is no file {script}.")
    words = [script, *wanted.training_script_args]
    if wanted.no_python:
        wanted.training_script, wanted.training_script_args = sys.executable, ["-m", RUN, *words]
    else:
        wanted.training_script, wanted.training_script_args = RUN, ["-m", *words] if wanted.module else words
        wanted.module = True
