"""Autoload in a virtual environment of its own: one file, which does nothing unless it is asked to."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import msgspec
import pytest
from snapshots import matches

import perf_callbacks
from perf_callbacks.commands import autoload as command, main, status
from perf_callbacks.launch import accelerate_config

SOURCE = str(Path(perf_callbacks.__file__).parents[1])
pytestmark = pytest.mark.needs_torch

ARMED = "import sys; print('perf_callbacks.autoload' in sys.modules, 'perf_callbacks' in sys.modules)"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Its Python."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=os.name != "nt")
    python = directory / ("Scripts" if os.name == "nt" else "bin") / "python"
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    shutil.copytree(Path(msgspec.__file__).parent, Path(packages, "msgspec"))  # the one dependency of the command
    return python


def python(executable, *words, path=SOURCE, **environ):
    """Run it, and return its exit status, its output and its complaints."""
    environ = {**os.environ, "PYTHONPATH": path, **environ}
    done = subprocess.run([executable, *words], env=environ, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def autoload(executable, action):
    script = "import sys; from perf_callbacks.commands import main; sys.exit(main(sys.argv[1:]))"
    return python(executable, "-c", script, "autoload", action)


def test_on_and_off(environment):
    assert autoload(environment, "status") == (0, "Autoload is off.\n", "")
    code, said, complaints = autoload(environment, "enable")
    file = Path(said.removeprefix("Autoload is on: ").rstrip())
    assert (code, complaints, file.name, file.is_file()) == (0, "", command.FILE, True)
    assert autoload(environment, "enable") == autoload(environment, "status") == (0, said, "")

    look = (environment, "-c", ARMED)
    assert python(*look) == python(*look, PERF_CALLBACKS="0") == (0, "False False\n", "")
    assert python(*look, PERF_CALLBACKS="off")[1] == "True True\n"  # asked again in words, it arms nothing
    assert python(*look, PERF_CALLBACKS="1") == (0, "True True\n", "")
    assert python(*look, PERF_CALLBACKS="1", path="") == (0, "False False\n", "")  # the package is gone

    for _ in range(2):
        assert autoload(environment, "disable") == (0, "Autoload is off.\n", "")
    assert not file.exists()


def test_a_directory_that_can_not_be_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(command, "place", lambda: tmp_path / "file" / "site-packages")
    assert main(["autoload", "enable"]) == 1
    assert capsys.readouterr().err == (
        f"perf-callbacks autoload: {tmp_path / 'file' / 'site-packages'}: Not a directory. Nothing has changed.\n"
    )


ON = {"PERF_CALLBACKS": "1"}
CASES = {
    "nothing": {},
    "all": {"files": ["site/it.pth"], "armed": True, "environ": ON | {"PERF_CALLBACKS_GC": "observe"}},
    "a program that was run": {"armed": True, "environ": ON | {"_PERF_CALLBACKS_RUN": "1:file"}},
    "a switch without effect": {"trees": False, "environ": ON},
    "switched off": {"environ": {"PERF_CALLBACKS": "0"}},
    "a section": {"section": "perf_callbacks:\n  window: 20\n"},
    "a section that can't be read": {"section": "perf_callbacks:\n  windwo: 20\n"},
    "another config": {"section": "a: 1\n"},
}
"""By name: files of autoload, trees with an entry point, and the environment."""


@pytest.fixture
def told(monkeypatch, capsys, tmp_path):
    """What `perf-callbacks status` says of each kind of training."""
    file = tmp_path / "accelerate/default_config.yaml"
    file.parent.mkdir()
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(command, "works", lambda: True)

    def tell(*, files=(), trees=True, armed=False, section="", environ=None):
        file.write_text(section)
        entries = [type("Entry", (), {"value": "perf_callbacks.autoload:factory"})] if trees else []
        finders = [status.autoload.Finder()] if armed else []
        with monkeypatch.context() as patch:
            for name, value in (environ or {}).items():
                patch.setenv(name, value)
            patch.setattr(command, "files", lambda: list(files))
            patch.setattr(status.metadata, "entry_points", lambda **_: entries)
            patch.setattr(sys, "meta_path", [*finders, *sys.meta_path])
            assert main(["status"]) == 0
        return capsys.readouterr().out.replace(f"{tmp_path}/", "")

    return tell


def test_texts_of_status_are_as_their_snapshot(told):
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    shown = "\n".join([f"=== {name}\n{told(**case)}" for name, case in CASES.items()])
    assert matches(Path(__file__).with_name("printed") / "status.txt", shown)


@pytest.mark.skipif(os.name == "nt", reason="the home directories of POSIX")
def test_without_a_home_directory_there_is_no_section(monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert accelerate_config.default_path({}) is None
    assert [*status.section(None)] == []


@pytest.mark.slow
def test_the_default_config_is_where_accelerate_has_it():
    """One process reads the module of accelerate anew for each environment, since the import takes seconds."""
    environments = [{}, {"XDG_CACHE_HOME": "/cache"}, {"HF_HOME": "/home", "XDG_CACHE_HOME": "/cache"}]
    bare = {name: value for name, value in os.environ.items() if name not in {"HF_HOME", "XDG_CACHE_HOME"}}
    look = f"""
import importlib, os
from accelerate.commands.config import config_args
for environ in {environments}:
    os.environ.update(environ)
    print(importlib.reload(config_args).default_config_file)
"""
    done = subprocess.run(
        [sys.executable, "-c", look], env=bare, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines() == [str(accelerate_config.default_path(environ)) for environ in environments]


def test_a_folder_of_the_same_name_is_no_installed_package(tmp_path, monkeypatch):
    (tmp_path / "left_by_uninstall").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not status.installed("left_by_uninstall")
