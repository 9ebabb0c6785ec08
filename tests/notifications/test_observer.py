"""Which events of a fit reach the command, on a clock that the test moves."""

import json
from dataclasses import replace

import pytest
import torch
from fakes import FakeClock
from journals import a_summary

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.settings.resolution import resolve
from perf_callbacks.notifications import observer
from perf_callbacks.notifications.observer import AT_ONCE, REFILL_SECONDS, Notifications

DRIFT = Finding(cause="drift", share=0.2, evidence="Steps became 30% longer", remedy="looking for lists")


class Started:
    """Stands in for the side process."""

    def __init__(self, command, lost):
        self.command, self.lost = command, lost
        self.events, self.steps, self.dismissed, self.full, self.over = [], [], 0, False, False

    def send(self, line, *, last=False):
        if self.full or self.over:
            return False
        self.events.append(json.loads(line))
        self.over = last
        return True

    def note_step(self, step):
        self.steps.append(step)

    def dismiss(self):
        self.dismissed += 1


class Fit:
    """A fit with a command, and the processes that were started for it."""

    def __init__(self, directory, *, rank=0, world_size=1):
        self.clock, self.started = FakeClock(), []
        settings = resolve(PerfConfig(journal=False), {"PERF_CALLBACKS_ON_EVENT": "notify"})
        place = FitLocation(
            integration="loop",
            directory=directory,
            device=torch.device("cpu"),
            rank=rank,
            world_size=world_size,
        )
        self.recorder = Recorder(settings, place, clock=self.clock)
        self.watch = Notifications(self.recorder, self.recorder.on_event, self.start)
        self.recorder.observe(self.watch)

    def start(self, command, lost):
        self.started.append(Started(command, lost))
        return self.started[-1]

    @property
    def events(self):
        return [(event["event"], event.get("dropped")) for one in self.started for event in one.events]

    def stall(self):
        self.recorder.observers.happened("stall", {"text": "no step for 60 s.", "step": 3})


@pytest.fixture
def fit(tmp_path):
    made = Fit(tmp_path)
    yield made
    made.recorder.close()


def test_a_stall_and_the_end_are_passed_on(fit):
    fit.stall()
    fit.recorder.close()
    (side,) = fit.started
    assert (side.command, side.lost["end"]["state"]) == (("notify",), "lost")
    assert [event["event"] for event in side.events] == ["stall", "end"]
    assert side.events[0]["step"] == 3
    assert side.events[1]["end"]["state"] == "ended"
    assert side.over


def test_drift_comes_before_the_end_and_the_end_comes_once(fit):
    fit.watch.record_written(a_summary(findings=(DRIFT,)))
    fit.watch.record_written(a_summary())
    assert fit.events == [("drift", None), ("end", None)]


def test_a_flood_is_cut_said_once_and_counted(fit, caplog):
    for _ in range(100):
        fit.stall()
    assert len(fit.events) == AT_ONCE
    assert len(caplog.messages) == 1
    assert "too many events" in caplog.messages[0]
    fit.clock.now += REFILL_SECONDS
    fit.stall()
    fit.stall()
    assert fit.events[AT_ONCE:] == [("stall", 100 - AT_ONCE)]
    fit.recorder.close()
    assert fit.events[-1] == ("end", 1)
    assert len(caplog.messages) == 1


def test_a_process_that_takes_nothing_is_a_flood_too(fit, caplog):
    fit.started[0].full = True
    fit.stall()
    fit.stall()
    fit.started[0].full = False
    fit.stall()
    assert fit.events == [("stall", 2)]
    assert len(caplog.messages) == 1


def test_the_number_of_steps_is_passed_on_every_ten_seconds(fit):
    ticks = [fit.watch.tick(float(second)) for second in range(25)]
    assert all(ticks)
    assert len(fit.started[0].steps) == 3
    fit.recorder.close()
    assert not fit.watch.tick(100.0)
    assert len(fit.started[0].steps) == 3


def test_another_rank_starts_a_process_only_for_a_stall_that_it_reports(tmp_path):
    fit = Fit(tmp_path, rank=1, world_size=2)
    assert fit.started == []
    fit.watch.tick(1.0)
    fit.stall()
    (side,) = fit.started
    assert side.lost is None
    fit.recorder.close()
    assert fit.events == [("stall", None)]
    assert side.dismissed == 1


def test_a_fit_without_an_end_dismisses_the_process(fit):
    watch = Notifications(fit.recorder, ("notify",), fit.start)
    del watch
    assert [side.dismissed for side in fit.started] == [0, 1]


def test_an_error_of_ours_is_logged_and_ends_nothing(fit, caplog, monkeypatch):
    monkeypatch.setattr(observer.event, "line", lambda event: 1 / 0)
    fit.stall()
    fit.recorder.close()
    assert len(caplog.messages) == 2
    assert fit.recorder.summary is not None


@pytest.mark.parametrize("rank", [0, 1])
def test_a_program_that_is_missing_is_told_of_at_the_start_by_rank_0(tmp_path, monkeypatch, caplog, rank):
    monkeypatch.setenv("PATH", str(tmp_path))
    fit = Fit(tmp_path, rank=rank, world_size=2)
    fit.recorder.run = replace(fit.recorder.run, rank=rank)
    assert observer.begin(fit.recorder, FitContext(model=None)) is None
    said = "perf_callbacks: PERF_CALLBACKS_ON_EVENT has no effect: there is no program 'notify'."
    assert caplog.messages == ([said] if rank == 0 else [])
    fit.recorder.close()
