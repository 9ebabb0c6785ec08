"""Notes in the files of a machine: private to its user, and gone with the job, whatever becomes of the directory."""

import os
import shutil
import time
from pathlib import Path

import pytest

from perf_callbacks.kernel.units import DAY_SECONDS
from perf_callbacks.ranks import node, private_directory
from perf_callbacks.ranks.node import FileNotes, gathered


def files_of(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_note_is_not_written_through_a_link(tmp_path):
    folder, secret = FileNotes(tmp_path / "notes"), tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    (tmp_path / "notes" / f"key.{os.getpid()}").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        folder.write("key", "note")
    (tmp_path / "notes" / "other").symlink_to(secret)
    assert folder.read("other") == []
    assert secret.read_text() == "secret"


def test_a_directory_of_other_files_is_not_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(node.tempfile, "gettempdir", lambda: str(tmp_path))
    mine, left = [gathered(0, 8, (0, 8), many=4, job=(job, "1")).directory for job in ("mine", "left")]
    left.mkdir(mode=0o700)
    (left / "thesis.tex").touch()
    os.utime(left, (time.time() - 2 * DAY_SECONDS,) * 2)
    node.remove_earlier(mine)
    assert files_of(left) == ["thesis.tex"]


def test_without_directories_that_can_be_held_paths_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr(private_directory, "HOLDS", False)
    folder = FileNotes(tmp_path / "notes")
    folder.write("verdict", "note")
    assert folder.read("verdict") == ["note"]
    folder.leave(talks=True)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_vanished_is_made_again(tmp_path):
    folder = FileNotes(tmp_path / "notes")
    (tmp_path / "notes").rmdir()
    folder.write("key", "note")
    assert folder.read("key") == ["note"]
    assert folder.read("key", "other") == []


def test_settings_of_the_next_fit_stay_when_a_rank_of_the_last_leaves(tmp_path, monkeypatch):
    folder, late = FileNotes(tmp_path / "notes"), FileNotes(tmp_path / "notes")
    late.write("part0 3", "part")
    read = late.read

    def slowly(*keys):
        notes = read(*keys)
        (tmp_path / "notes" / "verdict").write_text("settings of another process")
        return notes

    monkeypatch.setattr(late, "read", slowly)
    late.leave()
    assert folder.read("verdict") == ["settings of another process"]
    assert files_of(tmp_path / "notes") == ["verdict"]


def test_the_end_of_a_fit_removes_no_notes_of_the_next(tmp_path):
    first, second = FileNotes(tmp_path / "notes"), FileNotes(tmp_path / "notes")
    for folder in (first, second):
        folder.write("verdict", "the same")
    first.leave(talks=True)
    assert second.read("verdict") == ["the same"]
    second.leave(talks=True)
    assert list(tmp_path.iterdir()) == []


def test_a_note_is_written_though_the_directory_vanishes_before_its_rename(tmp_path, monkeypatch):
    folder, replace_file, calls = FileNotes(tmp_path / "notes"), os.replace, []

    def vanishes(*names, **directories):
        calls.append(names)
        if len(calls) == 1:
            shutil.rmtree(tmp_path / "notes")
        return replace_file(*names, **directories)

    monkeypatch.setattr(os, "replace", vanishes)
    folder.write("key", "note")
    assert folder.read("key") == ["note"]


def test_a_directory_that_always_vanishes_is_an_error_in_the_end(tmp_path, monkeypatch):
    folder = FileNotes(tmp_path / "notes")
    (tmp_path / "notes").rmdir()
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    with pytest.raises(FileNotFoundError):
        folder.write("key", "note")


def test_a_directory_left_a_day_ago_goes_with_the_next_job_of_this_user(tmp_path, monkeypatch):
    monkeypatch.setattr(node.tempfile, "gettempdir", lambda: str(tmp_path))
    mine, left, young = [
        gathered(0, 8, (0, 8), many=4, job=(job, "29500")).directory for job in ("mine", "left", "new")
    ]
    others = tmp_path / f"{left.name.rpartition('-')[0]}-cache"
    for directory in (left, young, others):
        directory.mkdir(mode=0o700)
        (directory / "verdict").touch()
    for directory in (left, others):
        os.utime(directory, (time.time() - 2 * DAY_SECONDS,) * 2)
    node.remove_earlier(mine)
    assert sorted(tmp_path.iterdir()) == sorted([young, others])


def test_notes_from_shortly_before_the_process_began_are_old_too(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "process_began", lambda: 1e9)
    folder = FileNotes(tmp_path / "notes")
    folder.write("key", "note")
    os.utime(tmp_path / "notes" / "key", (1e9 - 0.5, 1e9 - 0.5))
    assert folder.read("key") == []
    os.utime(tmp_path / "notes" / "key", (1e9 + 0.5, 1e9 + 0.5))
    assert folder.read("key") == ["note"]


def test_the_time_at_which_a_process_began_is_unknown_on_some_systems(monkeypatch):
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert node.process_began() == 0
