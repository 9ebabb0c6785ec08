"""`perf-callbacks autoload`: make this Python measure every program that runs with PERF_CALLBACKS=1."""

import argparse
import os
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import perf_callbacks
from perf_callbacks.kernel.records import atomic_file

SUMMARY: str = "make PERF_CALLBACKS=1 measure every trainer of this Python, without `perf-callbacks run`"

FILE = "perf_callbacks_autoload.pth"
LINE = (
    'import os; exec("try:\\n import perf_callbacks.autoload as a; a.arm_if_asked()\\nexcept Exception: pass") '
    'if os.environ.get("PERF_CALLBACKS", "0") not in ("", "0") else None\n'
)
"""Python runs this line at startup. It does nothing if PERF_CALLBACKS is not set or the package is missing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        f"enable writes one file, {FILE}, into the site directory of this Python where perf_callbacks is installed; "
        "disable removes it. Programs for which PERF_CALLBACKS=1 is not set see no difference."
    )
    parser.add_argument("action", choices=("enable", "disable", "status"))


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.action == "enable":
            place().mkdir(parents=True, exist_ok=True)
            atomic_file.replace(place() / FILE, LINE.encode())
        elif arguments.action == "disable":
            for file in files():
                file.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        print(f"perf-callbacks autoload: {error.filename or place()}: {reason}. Nothing has changed.", file=sys.stderr)
        return 1
    print(state())
    return 0


def state() -> str:
    paths = files()
    if not paths:
        return "Autoload is off."
    if not works():
        return f"Autoload has no effect: Python does not import perf_callbacks from {paths[0]}."
    return f"Autoload is on: {paths[0]}"


def place() -> Path:
    package = Path(perf_callbacks.__file__).parents[1]
    if package in directories():
        return package
    virtual = sys.prefix != sys.base_prefix  # an editable installation has the package elsewhere
    return Path(sysconfig.get_path("purelib") if virtual else site.getusersitepackages())


def directories() -> list[Path]:
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [Path(directory) for directory in [*site.getsitepackages(), *user]]


def files() -> list[Path]:
    places = dict.fromkeys([*directories(), place()])
    return [directory / FILE for directory in places if (directory / FILE).is_file()]


def works() -> bool:
    """A new Python process imports `perf_callbacks.autoload` at its start."""
    look = "import sys; sys.exit(0 if 'perf_callbacks.autoload' in sys.modules else 1)"
    environ = {**os.environ, "PERF_CALLBACKS": "1"}
    return subprocess.run([sys.executable, "-c", look], env=environ, check=False).returncode == 0  # noqa: S603 ours
