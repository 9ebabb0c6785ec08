"""Arming a process: it acts when a module has been imported, however and whenever that happens."""

import importlib
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
from jobs import run

import perf_callbacks
from perf_callbacks.launch import autoload

MODULE = "holds_a_trainer"
SOURCE = Path(perf_callbacks.__file__).parents[1]


@pytest.fixture
def acted(monkeypatch, tmp_path):
    """Acts on a module of the test's own, and notes its names then."""
    seen = []
    actions = {MODULE: lambda module: seen.append(sorted(name for name in vars(module) if name.isupper()))}
    monkeypatch.setattr(autoload, "ACTIONS", actions)
    monkeypatch.setattr(autoload, "COMPLAINTS", set())
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.syspath_prepend(tmp_path)
    yield seen
    sys.modules.pop(MODULE, None)


def module(directory, source="FIRST = LAST = 1"):
    (directory / f"{MODULE}.py").write_text(source)
    importlib.invalidate_caches()


def test_a_module_that_is_imported_later(tmp_path, acted):
    module(tmp_path)
    autoload.arm()
    assert acted == []
    imported = importlib.import_module(MODULE)
    assert acted == [["FIRST", "LAST"]]
    assert type(imported.__spec__) is importlib.machinery.ModuleSpec
    assert importlib.reload(imported) is imported


def test_a_module_that_was_imported_before(tmp_path, acted):
    module(tmp_path)
    importlib.import_module(MODULE)
    autoload.arm()
    assert acted == [["FIRST", "LAST"]]


def test_a_module_whose_import_has_begun(tmp_path, acted):
    module(tmp_path, "FIRST = 1\nfrom perf_callbacks.launch import autoload\nautoload.arm()\nLAST = 1")
    importlib.import_module(MODULE)
    assert acted == [["FIRST", "LAST"]]


def test_a_module_that_is_only_looked_for(tmp_path, acted):
    module(tmp_path)
    autoload.arm()
    assert importlib.util.find_spec(MODULE).origin == str(tmp_path / f"{MODULE}.py")
    assert acted == []


def test_a_module_that_is_not_there(acted):
    autoload.arm()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(MODULE)


def test_a_module_that_can_not_be_imported_says_so_as_ever(tmp_path, acted):
    module(tmp_path, "FIRST = 1 / 0")
    autoload.arm()
    with pytest.raises(ZeroDivisionError) as raised:
        importlib.import_module(MODULE)
    assert acted == []
    assert autoload.__file__ not in {frame.filename for frame in traceback.extract_tb(raised.tb)}


def test_arming_twice_is_arming_once(tmp_path, acted):
    module(tmp_path)
    autoload.arm()
    autoload.arm()
    importlib.import_module(MODULE)
    assert len(acted) == 1


def test_an_error_of_ours_is_told_once_and_the_import_goes_on(tmp_path, acted, monkeypatch, capsys):
    def fail(_module):
        raise RuntimeError("a bug of ours")

    module(tmp_path)
    monkeypatch.setattr(autoload, "ACTIONS", {MODULE: fail})
    autoload.arm()
    for _ in range(2):
        assert importlib.import_module(MODULE).LAST == 1
        del sys.modules[MODULE]
    assert capsys.readouterr().err == "perf_callbacks is off: a bug of ours\n"


def test_an_interrupt_is_not_held_back(tmp_path, acted, monkeypatch):
    def interrupt(_module):
        raise KeyboardInterrupt

    module(tmp_path)
    monkeypatch.setattr(autoload, "ACTIONS", {MODULE: interrupt})
    autoload.arm()
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module(MODULE)


@pytest.mark.parametrize(
    ("value", "asked"), [(None, False), ("", False), ("0", False), (" OFF ", False), ("1", True), ("true", True)]
)
def test_the_environment_asks(monkeypatch, value, asked):
    if value is not None:
        monkeypatch.setenv("PERF_CALLBACKS", value)
    assert autoload.asked() is asked


def test_an_armed_process_imports_next_to_nothing():
    """By the call that stands in the file of `perf-callbacks autoload`."""
    script = "import os, sys; found = {*sys.modules}; import perf_callbacks.autoload as a; a.arm_if_asked(); "
    script += "print(*sorted({name.partition('.')[0] for name in {*sys.modules} - found}))"
    script += "; assert type(sys.meta_path[0]).__module__ == 'perf_callbacks.launch.autoload'"
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "PERF_CALLBACKS": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    assert {*done.stdout.split()} <= {"__future__", "_warnings", "importlib", "perf_callbacks", "warnings"}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
@pytest.mark.parametrize("tree", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_finds_a_factory_that_is_there(tree):
    import tomllib

    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    (entry,) = project["entry-points"][f"{tree}.callbacks_factory"].values()
    name, _, factory = entry.partition(":")
    assert getattr(importlib.import_module(name), factory)() == []


def test_an_armed_accelerate_reads_a_config_with_our_section(tmp_path, monkeypatch):
    from accelerate.commands.config.config_args import BaseConfig, ClusterConfig

    class Config(ClusterConfig):
        process_config = BaseConfig.process_config
        from_yaml_file, from_json_file = ClusterConfig.from_yaml_file, ClusterConfig.from_json_file

    for name in ("GC", "WINDOW", "SECTION"):
        monkeypatch.setenv(f"PERF_CALLBACKS_{name}", "")
        monkeypatch.delenv(f"PERF_CALLBACKS_{name}")
    monkeypatch.setenv("PERF_CALLBACKS_WINDOW", "7")
    path = tmp_path / "acc.yaml"
    path.write_text("distributed_type: 'NO'\nperf_callbacks:\n  gc: off\n  window: 20\n")
    with pytest.raises(ValueError, match="perf_callbacks"):
        ClusterConfig.from_yaml_file(str(path))
    autoload.ACTIONS["accelerate.commands.config.config_args"](SimpleNamespace(BaseConfig=Config))
    assert Config.from_yaml_file(yaml_file=str(path)).num_processes == 1
    assert (os.environ["PERF_CALLBACKS_GC"], os.environ["PERF_CALLBACKS_WINDOW"]) == ("off", "7")


IMPORTS = "from perf_callbacks.loop import measure"
MAKES = "import torch; m = torch.nn.Linear(2, 1); measure(model=m, optimizer=torch.optim.SGD(m.parameters()))"
SWITCHED = {
    "imported and not used": (IMPORTS, {"PERF_CALLBACKS": "1"}, 1),
    "used": (f"{IMPORTS}; {MAKES}", {"PERF_CALLBACKS": "1"}, 0),
    "armed": (f"from perf_callbacks.launch import autoload; autoload.arm(); {IMPORTS}", {"PERF_CALLBACKS": "1"}, 0),
    "not set": (IMPORTS, {}, 0),
    "off": (IMPORTS, {"PERF_CALLBACKS": "0"}, 0),
    "another rank": (IMPORTS, {"PERF_CALLBACKS": "1", "RANK": "1"}, 0),
    "only settings": ("from perf_callbacks import PerfConfig", {"PERF_CALLBACKS": "1"}, 0),
    "only journals read": ("from perf_callbacks import journal", {"PERF_CALLBACKS": "1"}, 0),
    "a program that fails": (f"{IMPORTS}; 1 / 0", {"PERF_CALLBACKS": "1"}, 0),
}


@pytest.mark.needs_torch
@pytest.mark.parametrize(("program", "variables", "times"), SWITCHED.values(), ids=SWITCHED)
def test_a_switch_without_effect_is_told_once_at_the_end(tmp_path, program, variables, times):
    script = tmp_path / "train.py"
    script.write_text(program)
    status, _, errors = run(script, imports=("torch._dynamo",), directory=tmp_path, **variables)
    assert errors.count("PERF_CALLBACKS=1 had no effect: ") == times, errors
    assert status == (1 if "/" in program else 0)
