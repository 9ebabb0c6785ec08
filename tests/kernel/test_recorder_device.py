"""A recorder on a device: the end of a fit waits for the device's last steps, with a limit."""

import pytest
import torch
from fakes import FakeClock, FakeStream

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.engine import step_reader
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.process.device_facts import Timing
from perf_callbacks.kernel.process.event_timeline import CAPTURED, EventTimeline
from perf_callbacks.kernel.settings.resolution import resolve


@pytest.fixture
def worker(monkeypatch):
    """A stream that works as time goes by on a clock."""
    clock = FakeClock(0.0)
    worker = FakeStream(clock)
    timeline = EventTimeline(worker.event, capturing=lambda: worker.capturing)
    monkeypatch.setattr(device.Cpu, "timing", lambda _: Timing(timeline))
    monkeypatch.setattr(step_reader, "sleep", lambda _: clock.sleep(0.125))
    return worker


@pytest.fixture
def recorder(tmp_path, worker):
    place = FitLocation(integration="loop", directory=tmp_path, device=torch.device("cpu"))
    made = Recorder(resolve(PerfConfig(gc="off"), {}), place, clock=worker.clock)
    yield made
    made.close()


def train(recorder, worker, steps, seconds):
    """Queue steps, much faster than the device works."""
    for number in range(1, steps + 1):
        recorder.enter(Stage.FORWARD)
        worker.work(seconds)
        recorder.end_step(number)


@pytest.mark.parametrize("whole", [True, False])
def test_the_last_steps_are_waited_for(recorder, worker, whole):
    train(recorder, worker, 6, 0.8)
    if whole:
        assert recorder.whole(6)["perf/run/step_time"] == pytest.approx(0.8)
    recorder.close()
    summary = recorder.summary
    assert (summary.steps, summary.lost_steps, summary.included_steps) == (6, 0, 5)
    assert summary.step_time == pytest.approx(0.8)


def hang(recorder, worker, seconds):
    """Three steps of this length, and a fourth in which the device hangs."""
    train(recorder, worker, 3, seconds)
    worker.clock.sleep(3 * seconds)
    recorder.row(3)
    worker.clock = None  # it hangs
    recorder.enter(Stage.FORWARD)
    recorder.end_step(4)


@pytest.mark.parametrize(
    ("seconds", "longest", "failure"),
    [(0.01, 1.0, None), (0.5, 20 * 0.5, None), (0.5, 1.0, "KeyboardInterrupt")],
    ids=["a second", "20 steps", "a second after a failure"],
)
def test_a_device_that_hangs_is_waited_for_20_steps_or_a_second(recorder, worker, seconds, longest, failure):
    clock = worker.clock
    hang(recorder, worker, seconds)
    began = clock.now
    recorder.close(failure)
    assert longest < clock.now - began <= longest + 0.25
    assert (recorder.summary.steps, recorder.summary.lost_steps) == (4, 1)


def test_a_fit_that_ends_in_a_capture_asks_and_waits_for_nothing(recorder, worker):
    train(recorder, worker, 2, 0.5)
    worker.clock.sleep(1.0)
    recorder.row(2)
    worker.capturing = True
    recorder.end_step(3)
    began = worker.clock.now
    recorder.close()
    worker.capturing = False
    assert worker.clock.now == began
    assert (recorder.summary.steps, recorder.summary.included_steps, recorder.summary.failure) == (3, 1, None)


def test_a_fit_of_captured_steps_has_a_summary(recorder, worker):
    worker.capturing = True
    train(recorder, worker, 3, 0.5)
    worker.capturing = False
    recorder.close()
    summary = recorder.summary
    assert (summary.steps, summary.included_steps, summary.lost_steps, summary.failure) == (3, 0, 3, None)
    assert recorder.engine.why_empty in (None, f"3 {CAPTURED}")
