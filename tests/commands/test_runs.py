"""`perf-callbacks runs`, by what it prints."""

import json
import os
from pathlib import Path

import pytest
from journals import a_summary
from recorded import NOW, a_recorded, stand_still
from snapshots import matches

from perf_callbacks.commands import main


@pytest.fixture(autouse=True)
def still(monkeypatch):
    stand_still(monkeypatch)


def told(capsys, *words):
    assert main(["runs", *map(str, words)]) == 0
    return capsys.readouterr()


@pytest.fixture
def several(tmp_path):
    """Runs in all states: ended, killed, running, hanging."""
    a_recorded(tmp_path / "a", age=90_000.0, run_id="a", job_id="4711")
    a_recorded(tmp_path / "deep/er/b", age=600.0, run_id="b", ended=False, program="python -m x", model=None)
    a_recorded(tmp_path / "deep/c", run_id="c", ended=False, so_far=a_summary(step=40, run_id="c"), host=None)
    a_recorded(tmp_path / "deep/d", age=6.0, run_id="d", ended=False, hangs=True)
    return tmp_path


def test_texts_are_as_their_snapshot(several, tmp_path, capsys):
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    a_recorded(tmp_path / "deep/e", ended=False, age=600.0, host=None)
    texts = [told(capsys, several), told(capsys, several / "deep/e")]
    shown = "\n".join([text.out for text in texts]) + "".join([text.err for text in texts])
    assert matches(Path(__file__).with_name("printed") / "runs.txt", shown)


def test_json(several, capsys):
    found = json.loads(told(capsys, several, "--json").out)
    assert [one["run_id"] for one in found] == ["c", "d", "b", "a"]
    last = found[-1]
    assert (last["title"], last["state"], last["step_seconds"], last["mfu"], last["job_id"]) == (
        "train.py · Llama · on node7", "ended", 0.25, pytest.approx(0.4), "4711",
    )  # fmt: skip
    assert last["started_unix"] == NOW - 90_014.0


def test_links_and_hidden_directories_are_not_followed(tmp_path, capsys):
    a_recorded(tmp_path / "run")
    a_recorded(tmp_path / ".cache/run")
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    (tmp_path / "run/loop").symlink_to(tmp_path)
    assert len(told(capsys, tmp_path).out.splitlines()) == 2


def test_a_directory_that_cannot_be_read_is_named(tmp_path, capsys, monkeypatch):
    a_recorded(tmp_path / "run")
    (tmp_path / "locked").mkdir()
    scan = os.scandir

    def guarded(path):  # root may read each directory
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", guarded)
    printed = told(capsys, tmp_path)
    assert len(printed.out.splitlines()) == 2
    assert printed.err == f"{tmp_path}/locked: this directory can't be read\n"


def test_without_a_run_there_is_a_sentence(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"perf-callbacks runs: {tmp_path}: no run in or below this directory.")
