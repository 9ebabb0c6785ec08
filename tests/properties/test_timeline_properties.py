"""Laws of the device's timeline, on a stream that works whenever it likes."""

import pytest
from fakes import FakeStream, Fit
from hypothesis import given, strategies as st

from perf_callbacks.host.device import EventTimeline

STAGES = ("data", "forward", "backward", "optimizer", "other")
MILLISECOND_ROUNDING = 1e-9  # events tell milliseconds: seconds go there and back

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.sampled_from(STAGES), st.integers(0, 4096).map(lambda units: units / 1024)),
        st.tuples(st.just("span"), st.just("evaluation"), st.integers(0, 4096).map(lambda units: units / 1024)),
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
    queued = [dict.fromkeys(STAGES, 0.0)]
    for event, *details in [*events, ("end_step",), ("run",)]:
        if event == "work":
            fit.spend(details[0], 0.0)
            stream.work(details[1])
            queued[-1][details[0]] += details[1]
        elif event == "span":
            fit.engine.begin_span(details[0], fit.now)
            stream.work(details[1])
            fit.engine.end_span(fit.now)
        elif event == "run":
            stream.run()
        elif event == "row":
            fit.engine.row(fit.number)
        else:
            fit.end_step()
            queued.append(dict.fromkeys(STAGES, 0.0))
    assert stream.waited == 0
    assert len(made) <= capacity
    return fit.steps(), queued[:-1]


def assert_measured(step, queued):
    assert {stage: step[f"{stage}_time"] for stage in STAGES} == pytest.approx(queued, abs=MILLISECOND_ROUNDING)
    assert step["step_time"] == pytest.approx(sum(queued.values()), abs=MILLISECOND_ROUNDING)


@given(EVENTS)
def test_every_step_is_the_work_that_was_queued_for_it(events):
    steps, queued = play(events, capacity=4096)
    assert [step["step"] for step in steps] == list(range(1, len(queued) + 1))
    for step, expected in zip(steps, queued, strict=True):
        assert_measured(step, expected)


@given(EVENTS, st.integers(1, 24))
def test_with_too_few_events_a_step_is_lost_or_right(events, capacity):
    steps, queued = play(events, capacity)
    assert [step["step"] for step in steps] == list(range(1, len(queued) + 1))
    for step, expected in zip(steps, queued, strict=True):
        if step["excluded"] == "lost":
            assert step["step_time"] is None
        else:
            assert_measured(step, expected)
