"""Measurement of the callback's cost, in one process per integration, and the table of results."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec

import msgspec

from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.launch.cost.turns import Cost, MedianInterval
from perf_callbacks.report.layout import aligned
from perf_callbacks.report.units import duration

INTEGRATIONS = ("loop", "transformers", "lightning", "accelerate")

LONGEST_SECONDS = 300.0
"""Time limit of a process in seconds, to which ten times its planned training time is added."""

_DROPPED = ("PERF_CALLBACKS", "PERF_CALLBACKS_OUTPUT_DIR", "PERF_CALLBACKS_ON_EVENT")
"""Environment variables that would turn the callback on, or have effects outside of the process."""

_SCHEDULERS = ("SLURM_", "TORCHELASTIC_")
"""Prefixes of environment variables of a job. Such variables may make Lightning refuse to train on one device."""

_OVERRIDDEN = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "OMP_NUM_THREADS": "1",  # other threads of torch spin between operations, which counts as CPU time
}


def installed() -> list[str]:
    return [name for name in INTEGRATIONS if name == "loop" or find_spec(name) is not None]


def measure(names: Sequence[str], seconds: float) -> Iterator[Cost]:
    """Measure the callback's cost for some integrations, one after another. Raise `ConfigError` if a process fails.

    Args:
        names: Names of the integrations.
        seconds: Seconds of training per integration.
    """
    for name in names:
        command = [sys.executable, "-m", "perf_callbacks.launch.cost", name, str(seconds)]
        try:
            # The ledger of runs is in the user's cache, and a file of settings may name the directory of real runs.
            with tempfile.TemporaryDirectory() as scratch:
                own = {"XDG_CACHE_HOME": scratch, "PERF_CALLBACKS_OUTPUT_DIR": scratch}
                done = subprocess.run(  # noqa: S603 our own module
                    command,
                    env=environment(os.environ) | own,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=LONGEST_SECONDS + 10 * seconds,
                )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"{name}: no result after {error.timeout:.0f} s") from None
        try:
            yield msgspec.json.decode(done.stdout, type=Cost)
        except (msgspec.DecodeError, ValueError):
            raise ConfigError(f"{name}: " + (done.stderr.strip().splitlines() or ["no output"])[-1]) from None


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a training on one device, without the variables of a surrounding job."""
    ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
    kept = {
        name: value
        for name, value in variables.items()
        if name not in {*_DROPPED, *ranks} and not name.startswith(_SCHEDULERS)
    }
    device = kept.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]  # else Lightning starts a rank for each device
    return kept | _OVERRIDDEN | {"CUDA_VISIBLE_DEVICES": device}


def table(costs: Sequence[Cost]) -> list[str]:
    """Return the lines of the table of costs: a heading, and then one line per integration."""
    heading = ("", "step", "added to it", "control", "added CPU time", "once per run", "turns")
    rows = [
        (
            one.integration,
            duration(one.step_seconds),
            _micro(one.step),
            _micro(one.control),
            _micro(one.cpu),
            duration(max(0.0, one.run.median)),
            str(one.turns),
        )
        for one in costs
    ]
    return aligned([heading, *rows], right={1, 2, 3, 4, 5, 6})


def _micro(interval: MedianInterval) -> str:
    return f"{interval.median * 1e6:.1f} [{interval.low * 1e6:.1f}, {interval.high * 1e6:.1f}] us"
