"""What an import brings along."""

import functools
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import perf_callbacks

SOURCE = Path(perf_callbacks.__file__).parents[1]
FOREIGN = {"accelerate", "lightning", "numpy", "pytorch_lightning", "torch", "tqdm", "transformers", "yaml"}


@functools.cache
def brought_along(statement):
    """Those of the foreign packages that a new process has loaded after a statement."""
    script = f"import sys; {statement}; print(*sorted({FOREIGN!r} & set(sys.modules)))"
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "perf_callbacks",
        "perf_callbacks.kernel.engine.engine",
        "perf_callbacks.kernel.settings.in_force",
        "perf_callbacks.kernel.batches.reader",
        "perf_callbacks.flops.peaks.peak_rates",
        "perf_callbacks.commands",
        "perf_callbacks.autoload",
        "perf_callbacks.run",
        "perf_callbacks.launch.run",
        "perf_callbacks.launch.accelerate_config",
        "perf_callbacks.report.cards",
        "perf_callbacks.report.opening_card",
        "perf_callbacks.report.report_file",
        "perf_callbacks.kernel.process.gc_observer",
        "perf_callbacks.kernel.records.journal_file",
        "perf_callbacks.journal",
        "perf_callbacks.kernel.fit.environment",
        "perf_callbacks.garbage.item",
    ],
)
def test_an_import_brings_no_torch_and_no_framework(module):
    assert brought_along(f"import {module}") == set()


def test_the_test_before_would_notice():
    assert brought_along("import torch") >= {"torch"}
    assert brought_along("import perf_callbacks.loop") >= {"torch"}


def test_the_loop_door_brings_what_torch_brings():
    assert brought_along("import perf_callbacks.loop") == brought_along("import torch")


@pytest.mark.parametrize(("door", "other"), [("lightning", "pytorch_lightning"), ("pytorch_lightning", "lightning")])
def test_a_lightning_door_brings_its_own_tree_alone(door, other):
    found = brought_along(f"import perf_callbacks.{door}")
    assert door in found
    assert other not in found


def test_every_public_name_is_there():
    assert sorted(perf_callbacks.__all__) == ["ConfigError", "PerfConfig", "Summary", "__version__"]
    assert all(hasattr(perf_callbacks, name) for name in perf_callbacks.__all__)


@pytest.mark.parametrize(
    "path",
    [
        "perf_callbacks.transformers.PerfCallback",
        "perf_callbacks.lightning.PerfCallback",
        "perf_callbacks.pytorch_lightning.PerfCallback",
        "perf_callbacks.accelerate.Attachment",
        "perf_callbacks.loop.Measurement",
    ],
)
def test_a_public_class_names_its_public_module(path):
    """Pickles and the YAML of a command line hold this name."""
    found = pkgutil.resolve_name(path)
    assert f"{found.__module__}.{found.__qualname__}" == path
