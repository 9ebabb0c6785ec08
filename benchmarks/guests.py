"""Run a framework's own tests with a callback in every Trainer, or with every Accelerator attached.

    python benchmarks/guests.py lightning path/to/tests_pytorch loops trainer/optimization
    python benchmarks/guests.py accelerate path/to/tests test_data_loader.py
    python benchmarks/guests.py transformers path/to/trl/tests test_sft_trainer.py

Every test runs twice: once with a callback that does nothing, once with a PerfCallback. The outcomes that differ and
the time of the tests that pass both ways are printed: CPU time of the calls, which a busy machine does not lengthen.
`transformers` is for all projects whose trainers are subclasses of its `Trainer`. `--guests none` or `--guests ours`
runs one half; the next call compares both halves. Tests that assert exact log calls, exact progress-bar metrics or
exact callback lists are expected to differ.
"""

import argparse
import functools
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

GUEST = "PERF_GUEST"
"""Names the guest of this process: "none" or "ours"."""


def __getattr__(name: str) -> type:
    """Make Lightning's empty callback. Tests load pickled trainers in processes that only import this file."""
    if name != "Nothing":
        raise AttributeError(name)
    from lightning.pytorch import Callback

    found = globals()[name] = type(name, (Callback,), {"__module__": __name__})
    return found


def pytest_configure() -> None:
    """Put the guest into every Trainer, or onto every Accelerator. Runs where this file is a pytest plugin."""
    guest, framework = os.environ[GUEST].split()
    if framework == "lightning":
        from lightning.pytorch import Callback, Trainer

        from perf_callbacks.lightning import PerfCallback

        kind = __getattr__("Nothing") if guest == "none" else PerfCallback
        made = Trainer.__init__

        @functools.wraps(made)
        def init(self, *args, callbacks=None, **kwargs):
            given = [callbacks] if isinstance(callbacks, Callback) else [*(callbacks or ())]
            made(self, *args, callbacks=[*given, kind()], **kwargs)

        Trainer.__init__ = init
    elif framework == "transformers":
        from transformers import Trainer, TrainerCallback

        from perf_callbacks.transformers import PerfCallback

        kind = TrainerCallback if guest == "none" else PerfCallback
        made = Trainer.__init__

        @functools.wraps(made)
        def init(self, *args, **kwargs):
            made(self, *args, **kwargs)
            self.add_callback(kind())

        Trainer.__init__ = init
    elif guest == "ours":
        from accelerate import Accelerator

        from perf_callbacks.accelerate import attach

        created = Accelerator.__init__

        @functools.wraps(created)
        def begin(self, *args, **kwargs):
            created(self, *args, **kwargs)
            attach(self)

        Accelerator.__init__ = begin


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note the CPU seconds of a test and of the processes that it waited for."""
    before = sum(os.times()[:4])
    yield
    item.user_properties.append(("cpu", sum(os.times()[:4]) - before))


def outcomes(path: Path) -> dict[str, tuple[str, float]]:
    """Read each test's outcome and CPU seconds from a JUnit file."""
    found = {}
    for case in ET.parse(path).iter("testcase"):
        kinds = [child.tag for child in case if child.tag in {"failure", "error", "skipped"}]
        cpu = case.find("properties/property[@name='cpu']")
        seconds = 0.0 if cpu is None else float(cpu.get("value", 0))
        found[f"{case.get('classname')}::{case.get('name')}"] = (kinds or ["passed"])[0], seconds
    return found


def run(guest: str, given: argparse.Namespace) -> None:
    """Run the tests with one guest."""
    framework, tests = given.framework, given.tests.absolute()
    report = given.out.absolute() / f"{framework}-{guest}.xml"
    options = ["-p", "guests", "-p", "no:randomly", "-p", "no:cacheprovider", "-q", f"--junitxml={report}"]
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path[1:], str(tests.parent)])
    options += [*given.options, f"--timeout={given.limit}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *given.which],
        cwd=tests,
        env=os.environ | {GUEST: f"{guest} {framework}", "PYTHONPATH": paths},
        check=False,
    )


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=["lightning", "accelerate", "transformers"])
    parser.add_argument("tests", type=Path)
    parser.add_argument("which", nargs="*")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--limit", type=int, default=60, help="seconds per test")
    parser.add_argument("--guests", nargs="*", choices=["none", "ours"], default=["none", "ours"])
    parser.add_argument("--options", type=str.split, default=[], help="more options for pytest, as one argument")
    given = parser.parse_intermixed_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for guest in given.guests:
        run(guest, given)
    found = [given.out.absolute() / f"{given.framework}-{guest}.xml" for guest in ("none", "ours")]
    if not all(path.exists() for path in found):
        return
    without, with_ours = map(outcomes, found)
    both = [name for name, (how, _) in without.items() if how == with_ours.get(name, ("absent", 0.0))[0] == "passed"]
    seconds = [sum(each[name][1] for name in both) for each in (without, with_ours)]
    ratio = seconds[1] / max(seconds[0], 1e-9)
    print(f"{len(without)} tests, {len(both)} pass both ways, in {seconds[0]:.1f} and {seconds[1]:.1f} s ({ratio:.2f})")
    for name, (how, _) in without.items():
        other = with_ours.get(name, ("absent", 0.0))[0]
        if how != other:
            print(f"{how} -> {other}: {name}")


if __name__ == "__main__":
    main()
