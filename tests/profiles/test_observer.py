"""The choice of profiled steps, with a profiler and a side process that do nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import FakeClock

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.process import torch_profiler
from perf_callbacks.kernel.records.codec import pack
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.kernel.records.rank_records import Straggler
from perf_callbacks.kernel.settings.resolution import resolve
from perf_callbacks.profiles.observer import PER_TURN, PROPOSAL, ProfileWatch

TIMES = {"span_seconds": 1.0, "busy_seconds": 1.0, "communication_seconds": 0.0, "exposed_communication_seconds": 0.0}
CPU_PROFILE = pack(
    Profile(timeline="cpu", idle_seconds={}, class_seconds={"other": 1.0}, kernels=1, sync_seconds={}, **TIMES)
)


class FakeProfiler:
    """Notes the steps that are recorded."""

    def __init__(self, seen):
        self._seen, self.running = seen, False

    def start(self, step):
        self.running = True
        self._seen.append([step])

    def mark(self, step):
        self._seen[-1].append(step)

    def stop(self):
        self.running = False

    def export(self, path):
        path.write_text("{}")


class FakeReducer:
    """Takes traces and never answers."""

    over = False

    def __init__(self):
        self.taken, self.results = [], []

    def send(self, trace, kept, last):
        assert last >= 0
        assert trace.is_absolute()
        assert kept.is_absolute()
        self.taken.append(kept.name)
        trace.unlink()

    def answers(self):
        results, self.results = self.results, []
        return results

    def dismiss(self):
        self.over = True


class Fit:
    """A fit of steps that do nothing."""

    def __init__(self, directory, setting, ranks=1):
        self.clock, self.seen, self.reducer = FakeClock(), [], FakeReducer()
        place = FitLocation(integration="loop", directory=directory, device=torch.device("cpu"), world_size=ranks)
        self.recorder = Recorder(resolve(PerfConfig(profile=setting), {}), place, clock=self.clock)
        self.watch = ProfileWatch(self.recorder, setting, lambda _: FakeProfiler(self.seen), lambda: self.reducer)
        self.recorder.observe(self.watch)
        self.number = 0

    def run(self, steps, seconds=1.0):
        for _ in range(steps):
            self.number += 1
            self.clock.sleep(seconds)
            self.recorder.end_step(self.number)


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setattr("perf_callbacks.profiles.observer.CLOSE_SECONDS", 0.0)
    fits = []

    def start(setting, directory=tmp_path, ranks=1):
        fits.append(Fit(directory, setting, ranks))
        return fits[-1]

    yield start
    for fit in fits:
        fit.recorder.close()


def slow():
    return Straggler(step=1, rank=0, cause="host", seconds_lost=1.0)


@pytest.mark.parametrize(("setting", "expected"), [("20:3", [20, 21, 22]), ("2:1", [2]), ("30:2", [30, 31])])
def test_the_chosen_steps_are_recorded_once(start, setting, expected):
    fit = start(setting)
    fit.run(100)
    assert fit.seen == [expected]
    assert fit.reducer.taken == [f"profile0-{expected[0]}.json.gz"]
    assert fit.watch.due > fit.number


def test_auto_records_nothing_before_a_slow_step(start):
    fit = start("auto")
    fit.run(200)
    assert fit.seen == []


def test_auto_records_three_steps_at_most_three_times(start):
    fit = start("auto")
    for _ in range(6):
        fit.recorder.write(slow())
        fit.run(300)
    assert [len(steps) for steps in fit.seen] == [3, 3, 3]


def test_auto_keeps_within_its_part_of_the_time(start):
    fit = start("auto")
    for _ in range(2):
        fit.recorder.write(slow())
        fit.run(12)  # a profile takes three seconds
    assert len(fit.seen) == 1
    fit.run(100)
    fit.recorder.write(slow())
    fit.run(12)
    assert len(fit.seen) == 2


def test_no_step_is_added_after_a_minute(start):
    fit = start("20:9")
    fit.run(19)
    fit.run(30, seconds=25.0)
    assert fit.seen == [[20, 21, 22]]


def test_a_fit_that_goes_on_profiles_as_soon_as_possible(start):
    fit = start("20:3")
    fit.number = 400
    fit.run(10)
    assert fit.seen == [[402, 403, 404]]


def test_auto_counts_the_time_of_another_rank(start):
    fit = start("auto", ranks=2)
    for step, turns in ((0, 1), (20, 1), (200, 2)):
        fit.run(step - fit.number)
        fit.watch.happened("straggler", {"rank": 1})
        fit.recorder.observers.adopted(fit.watch.proposals, fit.number)
        assert fit.watch.proposals[PROPOSAL] // PER_TURN == turns  # a profile of rank 1 takes four seconds of rank 0
    assert fit.seen == []


@pytest.mark.parametrize(("nodes", "expected"), [(0, [20, 21, 22]), (9_000, [20, 21]), (20_000, [20]), (20_001, None)])
def test_large_steps_make_a_short_profile_or_none(start, monkeypatch, caplog, nodes, expected):
    made = [1000]
    monkeypatch.setattr(torch_profiler, "graph_nodes", lambda: made[0])
    fit = start("20:3")
    for _ in range(40):
        made[0] += nodes
        fit.run(1)
    assert fit.seen == ([] if expected is None else [expected])
    said = "no profile, training goes on: a step has about 20,001 operations in its forward, and at most 20,000 fit"
    assert (said in caplog.text) == (expected is None)


def test_an_evaluation_in_each_step_leaves_no_profile(start, caplog):
    fit = start("20:3")
    for _ in range(100):
        fit.recorder.begin_span("evaluation")
        fit.recorder.end_span()
        fit.run(1)
    assert len(fit.seen) == 3
    assert fit.reducer.taken == []
    assert "an evaluation or a checkpoint comes in each step" in caplog.text
    assert fit.watch.due > fit.number


@pytest.mark.parametrize("exhausted", [True, False])
def test_the_end_of_the_loader_ends_a_profile(start, exhausted):
    fit = start("20:9")
    fit.run(21)
    fit.recorder.leave(exhausted=exhausted)
    assert fit.reducer.taken == ["profile0-20.json.gz"]
    fit.run(20)
    assert fit.seen == [[20, 21, 22]]


def test_a_program_may_change_its_directory(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit = start("20:3", Path("out"))
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    fit.run(40)
    assert fit.reducer.taken == ["profile0-20.json.gz"]


def test_a_trace_without_the_device_of_the_training_is_no_profile(start, caplog):
    fit = start("20:3")
    fit.recorder.run = replace(fit.recorder.run, timeline="device")
    fit.reducer.results = [{"profile": CPU_PROFILE, "trouble": None, "unkept": None}]
    fit.run(40)
    fit.watch.tick(0.0)
    assert fit.watch.summary() == {"profiles": ()}
    assert "torch.profiler recorded nothing of the device" in caplog.text


def test_auto_counts_the_time_of_the_profile_to_come(start):
    fit = start("auto")
    fit.recorder.write(slow())
    fit.run(70)  # the first profile took three seconds, and the next would
    fit.recorder.write(slow())
    fit.run(20)
    assert len(fit.seen) == 1
