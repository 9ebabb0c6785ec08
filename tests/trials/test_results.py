"""Gains that trials measured, in the findings of later runs."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import a_run
from rows import each_row

from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.report import cards
from perf_callbacks.trials import results
from perf_callbacks.trials.plan import Identity, TrialOutcome
from perf_callbacks.trials.remedies import REMEDIES, Candidate
from perf_callbacks.trials.text import BASE, TrialResults

RUN = a_run(program="train.py", directory="/home/a", model="Net", parameters=7, batch=4)
WORKERS = next(remedy for remedy in REMEDIES if remedy.name == "workers")
LINE = "DataLoader(num_workers=2)"
FINDING = Finding(cause="data", share=0.5, evidence="Waiting for data took 50% of the run", remedy=LINE)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def result(rounds, identity=None):
    candidate = Candidate(remedy=WORKERS, value=2, line=LINE)

    def outcome(seconds):
        return TrialOutcome(steps=10, seconds=10 * seconds)

    times = [{BASE: outcome(1.31 * one), candidate.title: outcome(1.0)} for one in rounds]
    return TrialResults(
        program="train.py", candidates=(candidate,), rounds=times, identity=identity or Identity.from_run(RUN)
    )


def measured(run, finding=FINDING):
    return results.with_gains([finding], results.of_run(run))[0].measured


def test_a_stored_gain_is_in_the_finding_of_the_same_program():
    results.store(result([1.0, 1.01, 0.99]))
    low, factor, high = measured(RUN)
    assert low < factor < high
    assert factor == pytest.approx(1.31, abs=0.001)


@each_row(
    "other",
    [
        {"model": "Other"}, {"parameters": 8}, {"batch": 8}, {"device": "NVIDIA H200"}, {"world_size": 2},
        {"program": "other.py"}, {"directory": "/home/b"},
    ],
)  # fmt: skip
def test_another_program_has_no_gain(other):
    results.store(result([1.0, 1.01, 0.99]))
    assert measured(replace(RUN, **other)) is None


def test_a_program_is_known_from_wherever_it_was_started():
    results.store(result([1.0, 1.01, 0.99]))
    assert measured(replace(RUN, program="/home/a/train.py", directory="/elsewhere")) is not None


def test_another_number_or_remedy_has_no_gain():
    results.store(result([1.0, 1.01, 0.99]))
    assert measured(RUN, replace(FINDING, remedy="DataLoader(num_workers=3)")) is None
    assert measured(RUN, replace(FINDING, remedy="OMP_NUM_THREADS=2")) is None
    assert measured(RUN, replace(FINDING, remedy="a smaller batch")) is None


def test_a_single_round_is_not_stored():
    results.store(result([1.0]))
    assert measured(RUN) is None


@pytest.mark.parametrize("content", [b"", b"{", b'[{"remedy": 3}]'])
def test_a_broken_file_is_no_gain(content):
    results.store(result([1.0, 1.01, 0.99]))
    results.gains_path(Identity.from_run(RUN)).write_bytes(content)
    assert measured(RUN) is None


def test_without_a_place_for_the_file_nothing_is_stored(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    results.store(result([1.0, 1.01, 0.99]))
    assert measured(RUN) is None
    assert [one.name for one in Path(tmp_path).iterdir()] == ["file"]


def test_the_card_shows_the_measured_gain():
    found = replace(FINDING, measured=(1.27, 1.31, 1.35))
    assert cards.live(found, 60.0).endswith("Measured: 1.31x [1.27, 1.35].")
