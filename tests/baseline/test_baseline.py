"""A fit and its baseline: the line after the first steps, and the line in the ledger."""

from dataclasses import replace

import pytest
import torch
from fake_watchdog import FakeWatchdog
from fakes import a_run
from journals import a_fit, steps, write
from tiny import records

from perf_callbacks import PerfConfig
from perf_callbacks.baseline import ledger, observer, recorded_baseline
from perf_callbacks.baseline.observer import BaselineWatch, rate_of
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Row
from perf_callbacks.loop import measure
from perf_callbacks.report.run_figures import RunFigures
from perf_callbacks.trials import process


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A ledger of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(observer, "EARLY_SECONDS", 0.0)
    monkeypatch.setattr(observer, "WATCHDOG", FakeWatchdog())  # `train` calls `tick`
    return ledger.path()


def watch_of(perf):
    found = perf._session.recorder.observers.overriding["record_written"]
    return next((one for one in found if isinstance(one, BaselineWatch)), None)


def train(directory, *, number=130, events=None, **config):
    """Train some steps; return what the watch says then. `events` receives what happened."""
    model, said = torch.nn.Linear(4, 4), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.ones(2, 4)] * number
    config = PerfConfig(output_dir=str(directory), **config)
    with measure(model=model, optimizer=optimizer, loader=batches, config=config) as perf:
        watch = watch_of(perf)
        for batch in perf.loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        perf.row()
        if watch is not None:
            watch._show = said.append
            observers = perf._session.recorder.observers
            observers.happened = lambda *event: [] if events is None else events.append(event)
            watch.read()
            watch.tick(0.0)
    return said


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
    events = []
    (said,) = train(tmp_path / "b", baseline="auto", events=events)
    ((kind, details),) = events
    assert (kind, details["text"], details["runs"]) == ("regression", said, 5)
    assert " % slower than the last 5 undisturbed runs of this program (" in said
    assert f"torch 1.0 -> {torch.__version__}" in said
    assert train(tmp_path / "c") == []


def test_steps_of_less_than_ten_seconds_are_not_compared(file, tmp_path, monkeypatch):
    monkeypatch.setattr(observer, "EARLY_SECONDS", 1e6)
    assert train(tmp_path / "a", baseline=1e12) == []
    (line,) = ledger.read(file)
    assert line.early is None


def test_a_fit_is_compared_with_a_rate(file, tmp_path):
    (said,) = train(tmp_path / "a", baseline=1e12)
    assert said.endswith("% slower than the baseline of 1,000,000,000,000 samples/s per device.")
    assert len(ledger.read(file)) == 1


def test_a_directory_of_runs_is_a_baseline(tmp_path):
    for name, seconds in {"a": 0.25, "b": 0.5}.items():
        fit = a_fit(summary=False, run_id=name, started_unix=seconds)[:1]
        write(
            tmp_path / name, [*fit, Entry(1.0, steps(1, 60, seconds=seconds)), Entry(2.0, steps(61, 120, seconds=9.0))]
        )
    write(tmp_path / "short", [*a_fit(summary=False, run_id="short")[:1], Entry(1.0, steps(1, 20))])
    found = recorded_baseline.read(tmp_path, 60, 10.0, besides="none")
    assert [(one.run_id, one.steps, one.step_seconds) for one in found] == [("a", 60, 0.25), ("b", 60, 0.5)]
    assert found[0].stage_seconds["data_time"] == 0.0625
    (first, second) = recorded_baseline.read(tmp_path, 60, 100.0, besides="none")
    assert (first.steps, second.steps) == (60 + 10, 60 + 8)  # 60 steps, then steps of 9 s
    assert [one.run_id for one in recorded_baseline.read(tmp_path, 60, 10.0, besides="a")] == ["b"]


def test_a_directory_that_is_missing_is_no_baseline(file, tmp_path):
    assert train(tmp_path / "a", baseline=str(tmp_path / "none")) == []


def test_a_ledger_that_can_not_be_written_ends_nothing(file, tmp_path):
    file.parent.mkdir(parents=True)
    file.mkdir()
    assert train(tmp_path / "a", baseline="auto") == []


@pytest.mark.parametrize(("text", "number"), [("1500", 1500.0), ("auto", None), ("out", None)])
def test_a_number_is_a_rate(text, number):
    assert rate_of(text) == number


def efficiency(directory, **config):
    """Keys and values of the last row that a run logged."""
    train(directory, **config)
    rows = [one for one in records(directory, Row) if "perf/scaling_efficiency" in one.metrics]
    return rows[-1].metrics if rows else None


def test_the_efficiency_against_a_rate_is_logged(file, tmp_path):
    metrics = efficiency(tmp_path / "a", baseline=1e6)
    assert metrics["perf/scaling_efficiency"] == pytest.approx(metrics["perf/samples_per_second"] / 1e6, rel=1e-4)
    assert efficiency(tmp_path / "b") is None
    assert efficiency(tmp_path / "c", baseline="auto") is None
    assert efficiency(tmp_path / "d", baseline="-1") is None


def figures(rate, **changes):
    usual = {"run_id": "r", "parameters": 20, "device": "cpu", "samples_per_second": rate}
    return RunFigures(**usual | changes)


@pytest.mark.parametrize(
    ("runs", "rate"),
    [
        ([], None),
        ([figures(8.0), figures(2.0)], pytest.approx(4.0)),
        ([figures(8.0), figures(6.0, world_size=2, data_parallel=2)], 8.0),
        ([figures(8.0, parameters=21), figures(6.0, world_size=2, data_parallel=2, devices=2)], 3.0),
        ([figures(6.0, world_size=2, data_parallel=1)], 3.0),
        ([figures(6.0, world_size=2), figures(None), figures(8.0, device="NVIDIA H200")], None),
        ([figures(8.0), figures(9.0), figures(4.0, no_cpu_share=0.5)], pytest.approx(6.603854)),
        ([*[figures(8.0)] * 4, figures(4.0, no_cpu_share=0.5)], pytest.approx(8.0)),
    ],
)
def test_the_runs_on_the_fewest_devices_give_the_rate_of_a_directory(runs, rate):
    assert recorded_baseline.rate_per_device(runs, a_run(parameters=20)) == rate


def test_the_efficiency_against_a_directory_is_logged_once_the_directory_is_read(file, tmp_path):
    train(tmp_path / "a")
    directory = tmp_path / "b"
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(directory), baseline=str(tmp_path / "a"))
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, 4)] * 20, config=config) as perf:
        watch_of(perf).read()
        for batch in perf.loader:
            model(batch).sum().backward()
            optimizer.step()
        metrics = perf.row()
    assert 0 < metrics["perf/scaling_efficiency"] < 100
