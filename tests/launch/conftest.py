"""Trials of programs in a directory of their own."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from jobs import program_environ
from trial_kit import files, processes

from perf_callbacks import commands

QUICK = ("--json", "--seconds", "0.2", "--steps", "5", "--rounds", "1")


@pytest.fixture
def scratch(monkeypatch):
    """A temporary directory of the trials, with a short name, because sockets in it may not have a long one."""
    directory = tempfile.mkdtemp(prefix="t-")
    monkeypatch.setattr(tempfile, "tempdir", directory)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def tried(monkeypatch, capsys, tmp_path, scratch):
    """Tries a program, and returns the status, the result and the complaints. A trial leaves no file and no process."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for name, value in program_environ(XDG_CACHE_HOME=str(tmp_path / "cache")).items():
        monkeypatch.setenv(name, value)

    def run(source, *words, before=(), after=(), writes=False):
        (work / "train.py").write_text(source)
        found = files(work)
        status = commands.main(["try", *QUICK, *before, *(words or ("train.py",)), *after])
        said = capsys.readouterr()
        assert processes(scratch) == {}
        assert [*Path(scratch).iterdir()] == []
        assert writes or files(work) == found
        return status, json.loads(said.out) if said.out else None, said.err

    return run
