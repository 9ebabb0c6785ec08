"""`perf-callbacks profile`: explain profiled steps or a trace, and show which modules of a run take its FLOPs."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perf_callbacks.commands import report
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.records.codec import pack
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.profiles import reduction
from perf_callbacks.profiles.trace_events import TraceError
from perf_callbacks.report import module_table, module_times, profile_text

SUMMARY: str = "say in words what a trace or the profiled steps of a run show, and which modules take the FLOPs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Reads the last attempt of a run's last fit, of all ranks; or a trace that torch.profiler or Kineto wrote on "
        "any machine, also gzipped. Exits with 2 if there is no journal, if a journal holds an impossible value, or if "
        "the file is no trace, is damaged, or is too large."
    )
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="output directory of a run, a journal, or a trace (.json, .json.gz)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON: of a trace, the `profile` record")


def run(arguments: argparse.Namespace) -> int:
    if arguments.path.is_file() and arguments.path.suffix != ".jsonl":
        return _trace(arguments.path, as_json=arguments.json)
    fits = report.last(arguments.path)
    try:
        profiles = {
            fit.run.rank: [
                (profile, module_times.of_run(profile, fit, module_times.peak(fit, fits)))
                for profile in fit.records(Profile)
            ]
            for fit in fits
        }
        if arguments.json:
            facts = [
                profile_facts
                | {
                    "profiles": [
                        _plain(profile) | {"modules": [*map(asdict, modules)]} for profile, modules in profiled
                    ]
                }
                for profile_facts, profiled in zip(module_table.facts(fits), profiles.values(), strict=True)
            ]
            text = json.dumps(facts, indent=2, allow_nan=False)
        else:
            columns = terminal.columns()
            parts = [
                profile_text.of_run(rank, profile, columns, module_times.table(modules, profile))
                for rank, profiled in profiles.items()
                for profile, modules in profiled
            ]
            text = "\n\n".join([*parts, module_table.render(fits, columns)])
    except (ArithmeticError, ValueError):
        raise ConfigError(f"{arguments.path}: the journal holds impossible values") from None
    print(text)
    return 0


def _trace(path: Path, *, as_json: bool) -> int:
    try:
        profile = reduction.reduce_file(path)
    except TraceError as error:
        raise ConfigError(str(error)) from None
    if as_json:
        print(json.dumps(_plain(profile), indent=2, allow_nan=False))
    else:
        modules = module_times.table(module_times.of_trace(profile), profile)
        print(profile_text.render(profile, terminal.columns(), modules))
    return 0


def _plain(profile: Profile) -> Any:
    return json.loads(pack(profile))
