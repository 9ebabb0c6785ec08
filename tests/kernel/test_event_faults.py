"""Captures of graphs, and events that fail: training goes on, and steps have no time rather than a wrong time."""

import logging
import math

import pytest
from fakes import STAGES, DeviceFit, FakeClock, times
from rows import each_row

from perf_callbacks.kernel.process import event_timeline
from perf_callbacks.kernel.process.event_timeline import CAPTURED, LOST, why_unusable


@pytest.fixture
def fit():
    return DeviceFit()


def captured(fit, **stages):
    """A step within the capture of a graph."""
    fit.stream.capturing = True
    fit.step(**stages)
    fit.stream.capturing = False


def test_a_capture_survives_and_its_steps_have_no_time(fit):
    fit.step(**STAGES)
    fit.step(**STAGES)
    fit.stream.run()
    captured(fit, **STAGES)  # the fake fails if an event is recorded, or asked for, in a capture
    for _ in range(3):
        fit.step(**STAGES)
        fit.stream.run()
    fit.spend("data", 0.25)
    fit.stream.capturing = True  # within a step
    fit.spend("forward", 0.5)
    fit.stream.capturing = False
    for stages in ({"optimizer": 0.25}, STAGES):
        fit.step(**stages)
        fit.stream.run()
    steps = fit.steps()
    assert [step["excluded"] for step in steps] == ["first", None, CAPTURED, CAPTURED, None, None, CAPTURED, None]
    assert [step["step_time"] for step in steps if step["excluded"] != CAPTURED] == [2.0] * 5
    assert {step["step_time"] for step in steps if step["excluded"] == CAPTURED} == {None}


def test_a_row_within_a_capture_is_empty(fit):
    fit.stream.capturing = True
    fit.step(**STAGES)
    assert fit.engine.row(1) == {}
    fit.stream.capturing = False


def test_points_of_two_streams_out_of_order_change_no_step(fit):
    fit.step(other=1)
    fit.stream.run()
    fit.step(**STAGES)
    fit.stream.run(late={2: -0.75})  # the event that begins the backward reads 0.75 s too early
    fit.step(**STAGES)
    fit.stream.run()
    steps = [times(step) for step in fit.steps()]
    assert [step["step"] for step in steps] == [1.0, 2.0, 2.0]
    assert all(seconds >= 0 for step in steps for seconds in step.values())
    assert sum(steps[1].values()) == 2 * steps[1]["step"]


@pytest.mark.parametrize("milliseconds", [math.nan, math.inf, -1.0, 0.0])
def test_impossible_times_are_no_times(fit, milliseconds, monkeypatch, caplog):
    fit.step(**STAGES)
    fit.stream.run()
    monkeypatch.setattr("fakes.FakeEvent.elapsed_time", lambda *_: milliseconds)
    with caplog.at_level(logging.WARNING, logger="perf_callbacks"):
        for _ in range(event_timeline.SAID_AFTER + 20):
            fit.step(**STAGES)
            fit.stream.run()
    steps = fit.steps()
    assert {step["excluded"] for step in steps[1:]} == {LOST}
    assert {step["step_time"] for step in steps[1:]} == {None}
    assert caplog.messages == ["perf_callbacks: the device has given no times for 100 steps in a row."]


@pytest.mark.parametrize("call", ["record", "query", "elapsed_time"])
def test_a_device_that_fails_ends_no_training(fit, call, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("device-side assert")

    fit.step(**STAGES)
    fit.step(**STAGES)
    fit.stream.run()
    fit.step(**STAGES)
    monkeypatch.setattr(f"fakes.FakeEvent.{call}", fail)
    with caplog.at_level(logging.WARNING, logger="perf_callbacks"):
        for _ in range(5):
            fit.stream.run()
            fit.step(**STAGES)
    fit.stream.run()
    assert [step["excluded"] for step in fit.steps()] == ["first", None] + [LOST] * 6
    summary = fit.engine.stop(fit.now)
    assert (summary.steps, summary.included_steps, summary.lost_steps) == (8, 1, 6)
    warning = ["perf_callbacks: the device gives no more times, so steps get lost: RuntimeError: device-side assert."]
    assert caplog.messages == ([] if call == "elapsed_time" else warning)


def test_events_that_never_complete_take_bounded_memory(monkeypatch):
    monkeypatch.setattr(event_timeline, "MOST_BEHIND", 16)
    fit = DeviceFit(capacity=64)
    for _ in range(500):
        fit.step(**STAGES)
    assert len(fit.engine.step_reader.passed) <= 16
    assert fit.made <= 64
    assert {step["excluded"] for step in fit.steps()} == {"lost"}
    for _ in range(20):  # the device goes on after all
        fit.stream.run()
        fit.step(**STAGES)
    fit.stream.run()
    assert [step["step_time"] for step in fit.steps()][-5:] == [2.0] * 5


class Tried:
    """An event whose answers are given."""

    def __init__(self, *, done=True, between=0.01):
        self.done, self.between = done, between

    def record(self):
        if isinstance(self.done, Exception):
            raise self.done

    def query(self):
        return self.done

    def elapsed_time(self, _):
        if isinstance(self.between, Exception):
            raise self.between
        return self.between


@each_row(
    ("event", "why"),
    [
        ({}, None),
        ({"between": 0.0}, None),
        ({"between": math.nan}, "two of its events in a row were nan ms apart"),
        ({"between": math.inf}, "two of its events in a row were inf ms apart"),
        ({"between": -1.0}, "two of its events in a row were -1.0 ms apart"),
        ({"between": NotImplementedError("SYCL")}, "its events fail: NotImplementedError: SYCL"),
        ({"done": RuntimeError("no")}, "its events fail: RuntimeError: no"),
        ({"done": False}, "its events did not complete within 2 s"),
    ],
)
def test_two_events_show_if_a_device_can_time_steps(event, why, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(event_timeline, "monotonic", clock)
    monkeypatch.setattr(event_timeline, "sleep", clock.sleep)
    assert why_unusable(lambda: Tried(**event), Tried.record) == why
