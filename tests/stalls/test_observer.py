"""The seconds of a stall, on clocks that the test moves."""

from types import SimpleNamespace

import pytest
import torch
from fakes import FakeClock

from perf_callbacks import PerfConfig
from perf_callbacks.commands import main
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.process import stacks
from perf_callbacks.kernel.settings.resolution import resolve
from perf_callbacks.stalls.observer import StallWatch


class Fit:
    """A fit of seconds: steps end at quarters of a second, and the watch ticks at whole ones."""

    def __init__(self, directory, *, journal=False):
        self.clock = FakeClock(1000.0)
        settings = resolve(PerfConfig(stall_after="5", journal=journal), {})
        place = FitLocation(integration="loop", directory=directory, device=torch.device("cpu"))
        self.recorder = Recorder(settings, place, clock=self.clock)
        self.watch = StallWatch(self.recorder)
        self.recorder.observe(self.watch)
        self.step = 0

    def until(self, second):
        """Let the time pass, with a tick in each second."""
        while self.clock.now < 1000.0 + second:
            now = min(float(int(self.clock.now) + 1), 1000.0 + second)
            self.clock.now = now
            if now.is_integer():
                self.watch.tick(now)

    def end_step(self, second):
        self.until(second)
        self.step += 1
        self.recorder.end_step(self.step)


@pytest.fixture
def fit(tmp_path):
    made = Fit(tmp_path)
    for second in (0.25, 1.25, 2.25, 3.25):
        made.end_step(second)
    yield made
    made.recorder.close()


def test_a_stall_of_seven_seconds_has_seven_seconds(fit, caplog):
    fit.until(9)
    assert caplog.messages[-1].startswith("perf_callbacks: no step for 6 s. The training is in ")
    fit.end_step(10.25)
    fit.end_step(10.5)
    fit.until(12)
    assert caplog.messages[-1] == "perf_callbacks: training goes on after 7 s without a step."
    assert fit.watch.summary()["stalls"].seconds == 7.0


def test_a_stall_told_after_an_evaluation_of_another_rank_has_all_its_seconds(tmp_path, capsys):
    fit = Fit(tmp_path, journal=True)
    fit.recorder.ranks = SimpleNamespace(job_settings=None, close=lambda: None)  # the ranks exchange their positions
    for second in (0.25, 1.25, 2.25, 3.25):
        fit.end_step(second)
    fit.watch.notes.answered_at = 1031.0
    fit.until(31)
    assert fit.watch.summary()["stalls"].count == 0
    fit.watch.notes.told = True  # rank 0 evaluated until now, and has told the stall
    fit.until(32)
    assert main(["show", str(tmp_path)]) == 0
    fit.recorder.close()
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("hangs ")
    assert " for 28.8 s after step 4: rank 0 is in other. Not killed" in shown


def test_a_place_has_no_commands_to_a_terminal(fit, caplog, monkeypatch):
    monkeypatch.setattr(stacks, "of_thread", lambda _: stacks.Stack((), "a\x1b[2J.py:3", waits=False))
    fit.until(9)
    where = fit.watch.summary()["stalls"].where
    assert where.endswith(r"a\x1b[2J.py:3.")
    assert caplog.messages[-1] == f"perf_callbacks: no step for 6 s. {where}"


def test_a_stall_that_ends_with_the_training_has_all_its_seconds(fit, caplog):
    fit.until(10.25)
    fit.recorder.close()
    assert caplog.messages[-1] == "perf_callbacks: training ended after 7 s without a step."
    stalls = fit.recorder.summary.stalls
    assert (stalls.count, stalls.seconds, stalls.under_way) == (1, 7.0, False)


def test_a_stall_that_ended_just_before_the_training_has_its_own_seconds(fit, caplog):
    fit.until(10)
    fit.end_step(10.25)
    fit.clock.now += 0.5
    fit.recorder.close()
    assert caplog.messages[-1] == "perf_callbacks: training goes on after 7 s without a step."
    assert fit.recorder.summary.stalls.seconds == 7.0


def test_the_summary_so_far_has_the_stall_under_way(fit):
    fit.until(8)
    assert fit.watch.summary()["stalls"].count == 0
    fit.until(20)
    stalls = fit.watch.summary()["stalls"]
    assert (stalls.count, stalls.seconds, stalls.under_way) == (1, 16.75, True)
    assert stalls.where.startswith("The training is in ")
    found = fit.recorder.engine.interim_summary(fit.clock())
    assert found.stalls == stalls


def test_a_later_stall_counts_from_its_own_step(fit):
    fit.end_step(10.25)
    for second in (11.25, 12.25, 30.25):
        fit.end_step(second)
    fit.until(32)
    stalls = fit.watch.summary()["stalls"]
    assert (stalls.count, stalls.seconds) == (2, 25.0)
