"""Steps and stages on a stream's own clock: exact, or without a time, but never with a wrong one."""

import logging
import math

import pytest
from fakes import STAGES, DeviceFit, FakeClock, FakeStream, times
from rows import each_row

from perf_callbacks.kernel.engine.marks import BACK, BEGIN, END, WAIT
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.process import event_timeline
from perf_callbacks.kernel.process.event_timeline import CAPTURED, LOST, EventTimeline, why_unusable
from perf_callbacks.kernel.records.fit_records import Gc


@pytest.fixture
def fit():
    return DeviceFit()


def a_timeline():
    stream = FakeStream()
    return EventTimeline(stream.event), stream


def test_steps_are_handed_out_once_the_stream_has_done_them(fit):
    fit.step(**STAGES)
    assert not fit.engine.step_reader.collect()
    assert (fit.steps(), fit.engine.row(1)) == ([], {})
    fit.stream.run()
    fit.step(**STAGES)  # is not done yet
    assert not fit.engine.step_reader.collect()
    assert [step["step"] for step in fit.steps()] == [1]
    fit.stream.run()
    assert fit.engine.step_reader.collect()
    assert [step["step"] for step in fit.steps()] == [1, 2]
    assert fit.engine.row(2)["perf/step_time"] == 2.0
    assert fit.stream.waited == 0


def test_a_collection_is_recorded_and_is_no_stage(fit):
    fit.step(other=1)
    fit.pause(0.5)
    fit.step(**STAGES)
    fit.stream.run()
    row = fit.engine.row(2)
    assert "perf/gc_time" not in row
    assert (row["perf/gc_pause"], row["perf/step_time"]) == (0.5, 2.0)
    assert not [name for name in fit.steps()[0] if name == "gc_time"]
    assert [(gc.step, gc.stage, gc.seconds) for gc in fit.of(Gc)] == [(2, "other", 0.5)]


def test_events_are_used_again(fit):
    for _ in range(1000):
        fit.step(**STAGES)
        fit.stream.run()
    assert fit.made <= 64
    assert len(fit.steps()) == 1000


def test_a_step_without_a_free_event_alone_is_lost():
    fit = DeviceFit(capacity=16)
    micro_batches = {1: 1, 2: 1, 3: 9, 4: 1, 5: 1}
    for count in micro_batches.values():
        for _ in range(count):
            for stage, seconds in STAGES.items():
                fit.spend(stage, seconds)
        fit.feed(4, 32)
        fit.end_step()
        fit.stream.run()
    steps = fit.steps()
    assert [step["excluded"] for step in steps] == ["first", None, "lost", None, None]
    assert [step["step_time"] for step in steps] == [2.0, 2.0, None, 2.0, 2.0]
    assert fit.made <= 16
    summary = fit.engine.stop(fit.now)
    assert (summary.steps, summary.lost_steps, summary.included_steps) == (5, 1, 3)
    assert (summary.samples, summary.included_samples) == (20, 12)


def test_time_after_a_lost_step_is_in_the_stage_of_then():
    fit = DeviceFit(capacity=4)
    for stage, seconds in STAGES.items():
        fit.spend(stage, seconds)
    fit.end_step()  # turns to other, and finds no event for it
    fit.stream.work(1.0)
    fit.end_step()
    fit.stream.run()
    lost, step = fit.steps()
    assert (lost["excluded"], times(step)) == ("lost", {"other": 1.0, "step": 1.0})


def test_steps_on_the_stream_at_the_end_are_lost_for_good(fit):
    fit.step(**STAGES)
    fit.stream.run()
    fit.step(**STAGES)
    summary = fit.engine.stop(fit.now)
    assert (summary.steps, summary.lost_steps) == (2, 1)
    assert [step["excluded"] for step in fit.steps()] == ["first", "lost"]
    fit.stream.run()
    assert fit.engine.summary().lost_steps == 1


def test_an_interrupt_while_marks_are_read_costs_no_later_step(fit, monkeypatch):
    def interrupt(_tape, _written):
        raise KeyboardInterrupt

    for _ in range(2):
        fit.step(**STAGES)
        fit.stream.run()
    with monkeypatch.context() as patched:
        patched.setattr(Tape, "read", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fit.step(forward=8)
    for _ in range(3):
        fit.stream.run()
        fit.step(**STAGES)
    fit.stream.run()
    summary = fit.engine.stop(fit.now)
    assert (summary.lost_steps, summary.included_steps, summary.step_time) == (0, 3, 2.0)


class Mixed(DeviceFit):
    """A fit of which one event, the third that is used, is on a stream of its own."""

    def event(self):
        self.made += 1
        return (FakeStream() if self.made == 62 else self.stream).event()


def test_an_event_on_another_stream_loses_its_step():
    fit = Mixed()
    fit.step(other=1)
    fit.step(forward=1, backward=1)
    fit.step(**STAGES)
    fit.stream.run()
    assert [step["excluded"] for step in fit.steps()] == ["first", "lost", None]


def test_the_timeline_names_stages_by_their_place():
    timeline, stream = a_timeline()
    for stage in Stage:
        timeline.mark(stage)
        stream.work(1.0)
    timeline.mark(END)
    stream.run()
    assert timeline.ready() == [(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0)]  # the undecided second became other


def test_marking_a_stage_again_takes_no_event():
    stream = FakeStream()
    timeline = EventTimeline(stream.event, capacity=2)
    for _ in range(1000):
        timeline.mark(Stage.FORWARD)
        stream.work(0.25)
    timeline.mark(END)
    stream.run()
    assert timeline.ready() == [(0, 250, 0, 0, 0, 0, 0)]


def test_the_longest_step_is_on_the_stream_and_not_the_first(fit):
    for seconds, reason in ((9.0, "first"), (0.5, None), (2.0, None), (1.0, None)):
        if reason:
            fit.engine.exclude(reason)
        fit.step(forward=seconds)
    assert (fit.engine.step_reader.collect(), fit.engine.step_reader.longest_step) == (False, 0.0)
    fit.stream.run()
    assert (fit.engine.step_reader.collect(), fit.engine.step_reader.longest_step) == (True, 2.0)


def test_a_wait_for_other_ranks_is_a_stage_on_the_device_too():
    timeline, stream = a_timeline()
    for stage, waited in ((Stage.OTHER, 1.0), (Stage.OPTIMIZER, 2.0), (Stage.BACKWARD, 4.0)):
        timeline.mark(stage)
        stream.work(0.5)
        timeline.mark(WAIT)
        stream.work(waited)
        timeline.mark(BACK)
        stream.work(0.5)
    timeline.mark(END)
    stream.run()
    ((_, _, backward, optimizer, communication, _, other),) = timeline.ready()
    assert (backward, optimizer, communication, other) == (5.0, 1.0, 3.0, 1.0)


def test_many_waits_do_not_lose_a_step(monkeypatch):
    monkeypatch.setattr(event_timeline, "MOST_WAITS", 3)
    timeline, stream = a_timeline()
    for _ in range(2):
        timeline.mark(BEGIN[Stage.OTHER])
        for _ in range(8):
            timeline.mark(WAIT)
            stream.work(1.0)
            timeline.mark(BACK)
        timeline.mark(BACK)
        timeline.mark(Stage.FORWARD)
        stream.work(0.5)
        timeline.mark(END)
    stream.run()
    steps = timeline.ready()
    assert [(step[Stage.COMMUNICATION], step[Stage.OTHER], step[Stage.FORWARD]) for step in steps] == [(3, 5, 0.5)] * 2


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
    assert fit.engine.row(7)["perf/step_time"] == 2.0
    fit.stream.capturing = False
    for stages in ({"optimizer": 0.25}, STAGES):
        fit.step(**stages)
        fit.stream.run()
    steps = fit.steps()
    assert [step["excluded"] for step in steps] == ["first", None, CAPTURED, CAPTURED, None, None, CAPTURED, None]
    assert [step["step_time"] for step in steps if step["excluded"] != CAPTURED] == [2.0] * 5
    assert {step["step_time"] for step in steps if step["excluded"] == CAPTURED} == {None}


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
