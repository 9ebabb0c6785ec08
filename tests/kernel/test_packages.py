"""Versions of what the program has loaded."""

import sys
from types import ModuleType

from perf_callbacks.kernel.process import packages


def load(monkeypatch, name, **attributes):
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)


def test_loaded_packages_have_a_version_and_frameworks_come_first(monkeypatch):
    load(monkeypatch, "torch", __version__="2.99")
    load(monkeypatch, "aardvark", __version__="1.0")
    load(monkeypatch, "aardvark.part", __version__="1.1")
    load(monkeypatch, "_private", __version__="1.0")
    versions = packages.loaded()
    assert next(iter(versions)) == "torch"
    assert (versions["torch"], versions["aardvark"]) == ("2.99", "1.0")
    assert not {"aardvark.part", "_private", "json", "sys"} & {*versions}
    assert versions["pytest"]


def test_a_version_in_metadata_is_read_once_in_a_process(monkeypatch):
    load(monkeypatch, "pluggy")
    first = packages.loaded()
    assert first["pluggy"][0].isdigit()
    monkeypatch.setattr(packages.metadata, "version", None)
    assert packages.loaded() == first


def test_a_module_without_a_version_is_left_out(monkeypatch):
    load(monkeypatch, "made_up")
    load(monkeypatch, "torch", __version__=None)  # as a mock in somebody's tests
    monkeypatch.setitem(sys.modules, "hole", None)  # "this module can't be imported"
    load(monkeypatch, "long", __version__="1" * 1000)
    versions = packages.loaded()
    assert not {"made_up", "hole"} & {*versions}
    assert len(versions["long"]) == packages.LONGEST


def test_many_packages_are_not_all_listed(monkeypatch):
    for number in range(packages.MOST_PACKAGES):
        load(monkeypatch, f"aa{number}", __version__="1")
    assert len(packages.loaded()) == packages.MOST_PACKAGES


def test_drivers_are_read_where_linux_has_loaded_them(monkeypatch, tmp_path):
    (tmp_path / "version").write_text("570.86.15\n")
    (tmp_path / "torn").write_bytes(b"\xff\xfe")
    files = {"nvidia_driver": tmp_path / "version", "amdgpu_driver": tmp_path / "torn", "other": tmp_path / "none"}
    monkeypatch.setattr(packages, "DRIVERS", files)
    assert packages.drivers() == {"nvidia_driver": "570.86.15"}
