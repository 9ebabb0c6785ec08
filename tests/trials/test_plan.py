"""The files of a trial."""

import os
from pathlib import Path

import msgspec

from perf_callbacks.trials.plan import RESUMES, TrialOutcome, outcome_path, write


def test_ranks_that_write_the_outcome_at_once(tmp_path, monkeypatch):
    outcome, path = TrialOutcome(why=RESUMES), outcome_path(tmp_path / "1.plan")
    ranks, replace = iter([1, 2]), Path.replace
    monkeypatch.setattr(os, "getpid", lambda: next(ranks))

    def another_rank_is_first(part, target):
        monkeypatch.setattr(Path, "replace", replace)
        write(path, outcome)
        return part.replace(target)

    monkeypatch.setattr(Path, "replace", another_rank_is_first)
    write(path, outcome)
    assert msgspec.json.decode(path.read_bytes(), type=TrialOutcome) == outcome
    assert [*tmp_path.iterdir()] == [path]
