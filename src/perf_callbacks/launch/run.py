"""Run a program, and measure the trainers in it: `python -m perf_callbacks.run [-m] TARGET args…`.

The program replaces this process, in a new interpreter with our `sitecustomize.py` on PYTHONPATH. `__main__`,
arguments, exit code, signals and tracebacks are as in a direct run. Python child processes are measured too.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from perf_callbacks.kernel.settings import config_file
from perf_callbacks.kernel.settings.config import ConfigError, printable, rules
from perf_callbacks.launch.autoload import RUN, SWITCH, program_ended

SITE = Path(__file__).parent / "site"

USAGE = "usage: perf-callbacks run [--profile[=STEPS]] [-m] TARGET [ARGS ...]"
WINDOWS = os.name == "nt"
BESIDE = os.path.dirname(sys.executable)  # noqa: PTH120 a symbolic link to Python stands in the right directory

HELP = frozenset({"-h", "--help", "--version"})
PROFILE, STEPS = "PERF_CALLBACKS_PROFILE", "20:3"
"""Environment variable of the setting `profile`, and its value if `--profile` has none."""
PYTHON_FILES = (".py", ".pyw", ".pyc", ".pyz", ".zip")


def main(words: Sequence[str]) -> int:
    """Return only after an error, or on Windows with the status of the program, which is a child process there."""
    steps, words = profiled(words)
    environ = {**os.environ, PROFILE: steps} if steps else dict(os.environ)
    try:
        command = find(words)
        armed = config_file.in_force(None, environ).config.enabled
    except (LookupError, ConfigError) as error:
        print(f"perf-callbacks run: {printable(error.args[0])}", file=sys.stderr)  # noqa: T201 the answer of a command
        return 2
    flag = isolating(command)
    if armed and flag is not None:
        print(f"perf-callbacks run: python {flag} doesn't import sitecustomize: nothing is measured.", file=sys.stderr)  # noqa: T201 as above
    reports = flag is None and _reports(words, command)
    environ = environment(environ, reports=reports) if armed else environ
    sys.stdout.flush()
    if not WINDOWS:
        os.execve(command[0], command, environ)  # noqa: S606 the program that the user named
    status = subprocess.call(command, env=environ)  # noqa: S603 the program that the user named
    program_ended(environ.get(RUN, "").partition(":")[2], failed=status != 0)
    return status


def profiled(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Split the option `--profile` from the start of a command line.

    >>> profiled(["--profile", "train.py"]), profiled(["--profile=auto", "-m", "train"])
    (('20:3', ['train.py']), ('auto', ['-m', 'train']))
    """
    option, given, value = words[0].partition("=") if words else ("", "", "")
    if option != "--profile":
        return None, words
    if not given and len(words) > 1 and rules()["profile"].allows(words[1]):
        return words[1], words[2:]
    return value if given else STEPS, words[1:]


def find(words: Sequence[str]) -> list[str]:
    """Complete a command line that begins with `-m` and a module, a Python file, or the name of a program.

    Raise `LookupError` if there is no such program.

    >>> find(["-m", "json.tool", "--indent", "2"])[-4:]
    ['-m', 'json.tool', '--indent', '2']
    """
    if not words or words == ["-m"]:
        raise LookupError(f"nothing to run. {USAGE}")
    python = [sys.executable, *interpreter_flags(sys.orig_argv)]
    if words[0] == "-m":
        if not _has_module(words[1]):
            raise LookupError(f"there is no module named {words[1]}.")
        return [*python, *words]
    target = Path(words[0])
    if (target.is_file() and target.suffix in PYTHON_FILES) or (target / "__main__.py").is_file():
        return [*python, *words]
    command = shutil.which(words[0]) or shutil.which(words[0], path=BESIDE)  # comes before a file, as in a shell
    if command is not None:
        return [command, *words[1:]]
    if target.is_file():
        return [*python, *words]
    raise LookupError(f"there is no file and no command named {target}.")


def interpreter_flags(words: Sequence[str]) -> list[str]:
    """Return Python's own flags, such as `-u`.

    >>> interpreter_flags(["python", "-u", "-X", "dev", "-Wignore", "-Om", "perf_callbacks.run", "-m", "train"])
    ['-u', '-X', 'dev', '-Wignore', '-O']
    >>> interpreter_flags(["python", "bin/perf-callbacks", "run", "-m", "train"])
    []
    """
    flags: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word in {"-X", "-W", "--check-hash-based-pycs"}:
            flags += [word, next(rest, "")]
            continue
        flag = word if word.startswith(("-X", "-W")) else re.split("[cm]", word, maxsplit=1)[0]
        if not flag.startswith("-"):
            break
        if flag != "-":
            flags.append(flag)
        if flag != word:  # "-Om module" is "-O -m module"
            break
    return flags


def _reports(words: Sequence[str], command: Sequence[str]) -> bool:
    """True if a command runs Python, and has no option such as `--help`."""
    if HELP & {*words}:
        return False
    if WINDOWS or _is_this_python(command[0]):
        return True
    try:
        with Path(command[0]).open("rb") as file:  # here, a script from `pip install` names its Python
            first = file.readline(1000)
            return first.startswith(b"#!") and b"python" in first + file.readline(1000)
    except OSError:
        return False


def _is_this_python(command: str) -> bool:
    return os.path.realpath(command) == os.path.realpath(sys.executable)


def isolating(command: Sequence[str]) -> str | None:
    flags = interpreter_flags(command) if _is_this_python(command[0]) else ()
    return next((flag for flag in flags if re.fullmatch("-[^XW]*[IES].*", flag)), None)


def environment(environ: "os._Environ[str] | dict[str, str]", *, reports: bool = True) -> dict[str, str]:
    """With `reports`, the program prints a message at its exit if nothing was measured."""
    pythonpath = environ.get("PYTHONPATH")  # an empty entry is the working directory
    others = [path for path in pythonpath.split(os.pathsep) if path != str(SITE)] if pythonpath else []
    return {
        **environ,
        SWITCH: environ.get(SWITCH, "").strip() or "1",
        "PYTHONPATH": os.pathsep.join([str(SITE), *others]),
        # a run within a run prints no message of its own
        RUN: environ.get(RUN) or f"{os.getpid()}:{_unmeasured() if reports else ''}",
    }


def _unmeasured() -> str:
    """Create the file that exists until the program measures something. Empty if no temporary file can be created."""
    try:
        with tempfile.NamedTemporaryFile(prefix="perf_callbacks-run-", delete=False) as file:
            return file.name
    except OSError:
        return ""


def _has_module(name: str) -> bool:
    search_path = sys.path
    sys.path = [str(Path.cwd()), *search_path]
    try:
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path = search_path
