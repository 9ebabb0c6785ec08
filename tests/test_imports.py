"""What an import brings along."""

import pkgutil

import pytest
from jobs import run

import perf_callbacks

FOREIGN = {"accelerate", "lightning", "numpy", "pytorch_lightning", "rich", "torch", "tqdm", "transformers", "yaml"}


@pytest.fixture
def brought_along(tmp_path):
    """Those of the foreign packages that a new process has loaded after a statement, maybe one with torch before it."""

    def loaded(statement, before="json"):
        script = tmp_path / "script.py"
        script.write_text(f"import sys; {statement}; print(*sorted({FOREIGN!r} & set(sys.modules)))")
        status, output, errors = run(script, imports=(before,), directory=tmp_path)
        assert status == 0, errors
        return set(output.split())

    return loaded


TORCH_FREE = """
    perf_callbacks perf_callbacks.autoload perf_callbacks.commands perf_callbacks.flops.peaks.peak_rates
    perf_callbacks.garbage.item perf_callbacks.journal perf_callbacks.kernel.batches.reader
    perf_callbacks.kernel.engine.engine perf_callbacks.kernel.fit.environment
    perf_callbacks.kernel.process.gc_observer perf_callbacks.kernel.records.journal_file
    perf_callbacks.kernel.settings.resolution
    perf_callbacks.launch.accelerate_config perf_callbacks.launch.run perf_callbacks.profiles.reduction
    perf_callbacks.report.cards perf_callbacks.report.opening_card perf_callbacks.report.report_file
    perf_callbacks.run"""


def test_imports_bring_no_torch_and_no_framework(brought_along):
    assert brought_along(f"import {', '.join(TORCH_FREE.split())}") == set()


@pytest.mark.needs_torch
def test_the_loop_door_brings_no_more_than_torch(brought_along):
    with_torch = brought_along("import torch", before="torch._dynamo")
    assert brought_along("import perf_callbacks.loop", before="torch._dynamo") == with_torch


@pytest.mark.slow
@pytest.mark.parametrize(("door", "other"), [("lightning", "pytorch_lightning"), ("pytorch_lightning", "lightning")])
def test_a_lightning_door_brings_its_own_tree_alone(brought_along, door, other):
    found = brought_along(f"import perf_callbacks.{door}", before="torch._dynamo")
    assert door in found
    assert other not in found


def test_every_public_name_is_there():
    assert sorted(perf_callbacks.__all__) == ["ConfigError", "PerfConfig", "Summary", "__version__"]
    assert all(hasattr(perf_callbacks, name) for name in perf_callbacks.__all__)


@pytest.mark.needs_torch
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
