"""Laws of the device's timeline, on a stream that works whenever it likes."""

import pytest
from fakes import FakeStream, Fit
from hypothesis import given, strategies as st

from perf_callbacks.kernel.process.event_timeline import EventTimeline

STAGES = ("data", "forward", "backward", "optimizer", "other")
MILLISECOND_ROUNDING = 1e-9  # events tell milliseconds: seconds go there and back

SECONDS = st.integers(0, 4096).map(lambda units: units / 1024)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.sampled_from(STAGES), SECONDS),
        st.tuples(st.just("more"), SECONDS),
        st.tuples(st.just("span"), SECONDS),
        st.just(("run",)),
        st.just(("end_step",)),
        st.just(("row",)),
    ),
    max_size=80,
)


def play(events, capacity):
    """The fit, and for each of its steps the seconds by stage that were queued for it."""
    stream = FakeStream()
    made = []
    fit = Fit(device=EventTimeline(lambda: made.append(stream.event()) or made[-1], capacity=capacity))
    queued, current = [dict.fromkeys(STAGES, 0.0)], "other"
    for event, *details in [*events, ("end_step",), ("run",)]:
        if event == "work":
            current = details[0]
            fit.spend(current, 0.0)
        if event in {"work", "more"}:
            stream.work(details[-1])
            queued[-1][current] += details[-1]
        elif event == "span":
            fit.engine.begin_span("evaluation", fit.now)
            stream.work(details[0])
            fit.engine.end_span(fit.now)
        elif event == "run":
            stream.run()
        elif event == "row":
            fit.engine.row(fit.number)
        else:
            fit.end_step()
            current = "other"
            queued.append(dict.fromkeys(STAGES, 0.0))
    assert stream.waited == 0
    assert len(made) <= capacity
    return fit.steps(), queued[:-1]


def assert_measured(step, queued):
    if not any(queued.values()):  # a device that gives no time
        assert (step["excluded"], step["step_time"]) == ("lost", None)
        return
    assert {stage: step.get(f"{stage}_time", 0) for stage in STAGES} == pytest.approx(queued, abs=MILLISECOND_ROUNDING)
    assert step["step_time"] == pytest.approx(sum(queued.values()), abs=MILLISECOND_ROUNDING)


@given(EVENTS, st.integers(1, 12) | st.just(4096))
def test_a_step_is_the_work_queued_for_it_or_lost_without_events(events, capacity):
    steps, queued = play(events, capacity)
    assert [step["step"] for step in steps] == list(range(1, len(queued) + 1))
    for step, expected in zip(steps, queued, strict=True):
        if step["excluded"] == "lost" and capacity < 4096:
            assert step["step_time"] is None
        else:
            assert_measured(step, expected)
