"""A fit and its baseline: the line after the first steps, and the line in the ledger."""

from dataclasses import replace

import pytest
import torch
from fake_watchdog import FakeWatchdog

from perf_callbacks import PerfConfig
from perf_callbacks.baseline import ledger, observer
from perf_callbacks.baseline.observer import BaselineWatch
from perf_callbacks.loop import measure
from perf_callbacks.trials import process


class Shown(BaselineWatch):
    """Keeps the lines that are shown and the events of each fit."""

    fits: list = []  # noqa: RUF012 emptied for each test

    def __init__(self, recorder, show):
        self.lines, self.events = [], []
        recorder.observers.happened = lambda *event: self.events.append(event)
        self.fits.append(self)
        super().__init__(recorder, self.lines.append)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A ledger of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(observer, "EARLY_SECONDS", 0.0)
    monkeypatch.setattr(observer, "WATCHDOG", FakeWatchdog())  # `train` calls `tick`
    monkeypatch.setattr(observer, "BaselineWatch", Shown)
    Shown.fits.clear()
    return ledger.path()


def train(directory, *, number=130, **config):
    """Train some steps; return what the watch says then."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(directory), **config)
    before = len(Shown.fits)
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, 4)] * number, config=config) as perf:
        for batch in perf.loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        perf.row()
        for watch in Shown.fits[before:]:
            watch.read()
            watch.tick(0.0)
    return Shown.fits[-1].lines if len(Shown.fits) > before else []


def test_each_fit_has_a_line_in_the_ledger(file, tmp_path):
    train(tmp_path / "a")
    train(tmp_path / "b", number=20)
    first, second = ledger.read(file)
    assert (first.run.state, first.run.directory, first.run.model) == ("ended", str(tmp_path / "a"), "Linear")
    assert first.early.steps >= 100
    assert second.early is None
    assert first.key == second.key
    assert {"torch", "python"} <= {*first.run.versions}


def test_trials_and_fits_without_a_journal_have_no_line(file, tmp_path, monkeypatch):
    train(tmp_path / "a", journal=False)
    monkeypatch.setattr(process, "current_trial", object)
    monkeypatch.setattr("perf_callbacks.session.OBSERVERS", (observer.begin,))
    train(tmp_path / "b")
    assert ledger.read(file) == []


def faster(file, factor):
    """Make the runs of the ledger this many times faster than they were, five times each."""
    (line,) = ledger.read(file)
    file.unlink()
    early = line.early
    for place in range(5):
        seconds = early.step_seconds / factor * (1 + 0.001 * place)
        rates = {"samples_per_second": 2 / seconds, "tokens_per_second": None}
        changed = {"step_seconds": seconds, "versions": {**early.versions, "torch": "1.0"}, "run_id": f"r{place}"}
        found = replace(early, **changed, **rates)
        ledger.append(ledger.LedgerLine(key=line.key, run=found, early=found), file)


def test_a_fit_says_how_it_stands_to_the_last_runs_of_its_program(file, tmp_path):
    assert train(tmp_path / "a", baseline="auto") == []
    faster(file, 2e4)  # more than any load explains, and a step of 85 us is still longer than the shortest possible
    (said,) = train(tmp_path / "b", baseline="auto")
    ((kind, details),) = Shown.fits[-1].events
    assert (kind, details["text"], details["runs"]) == ("regression", said, 5)
    assert " % slower than the last 5 undisturbed runs of this program (" in said
    assert f"torch 1.0 -> {torch.__version__}" in said
    assert train(tmp_path / "c") == []


def test_a_ledger_that_can_not_be_written_ends_nothing(file, tmp_path):
    file.parent.mkdir(parents=True)
    file.mkdir()
    assert train(tmp_path / "a", baseline="auto") == []
