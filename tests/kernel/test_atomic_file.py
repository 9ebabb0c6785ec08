"""A file is replaced as a whole, and a link that others have put in the way leads to no file of the user."""

import os

import pytest
from journals import a_summary

from perf_callbacks.commands import autoload
from perf_callbacks.flops.peaks import peak_source
from perf_callbacks.kernel.records import atomic_file, interim
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.profiles import side_process
from perf_callbacks.report import report_file
from perf_callbacks.trials import plan


def keep_profile(path, _):
    (trace := path.with_name("trace")).write_text("{}")
    side_process.keep(trace, path)


def enable_autoload(path, patch):
    patch.setattr(autoload, "place", lambda: path.parent)
    patch.setattr(autoload, "FILE", path.name)
    autoload.run(type("Arguments", (), {"action": "enable"}))


WRITERS = {
    "any": lambda path, _: atomic_file.replace(path, b"x"),
    "parts": lambda path, _: atomic_file.replace(path, iter([b"x", b"y"])),
    "report": lambda path, _: report_file.write_parts(path, ["x"]),
    "profile": keep_profile,
    "trial": lambda path, _: plan.write(path, plan.TrialOutcome()),
    "peaks": lambda path, _: peak_source.write(path, {}),
    "autoload": enable_autoload,
    "summary": lambda path, _: interim.write(path.with_name("rank0.jsonl"), Entry(1.0, a_summary())),
}


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="links")
@pytest.mark.parametrize("writer", WRITERS)
def test_a_planted_link_leads_to_no_file_of_the_user(tmp_path, monkeypatch, writer):
    (mine := tmp_path / "mine").write_text("mine")
    (folder := tmp_path / "folder").mkdir()
    path, process = folder / "summary0.json", os.getpid()
    parts = [f"{path.name}.{process}.part", f"{path.name}.part", f"{path.stem}.{process}.part"]
    planted = [path.name, f"{path.stem}.{process}.tmp", *parts]
    for name in planted:
        (folder / name).symlink_to(mine)
    WRITERS[writer](path, monkeypatch)
    assert mine.read_text() == "mine"
    assert path.is_file()
    assert not path.is_symlink()
    assert {file.name for file in folder.iterdir()} == {*planted}


def test_a_file_whose_writing_fails_stays_as_it_was(tmp_path):
    (path := tmp_path / "file").write_text("before")
    with pytest.raises(ZeroDivisionError):
        atomic_file.replace(path, (b"x" * (1 // n) for n in (1, 0)))
    assert [(file, file.read_text()) for file in tmp_path.iterdir()] == [(path, "before")]
