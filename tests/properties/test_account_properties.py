"""The account of any fit sums to its wall time."""

from fakes import Fit
from hypothesis import given, strategies as st

EVENTS = st.sampled_from(["step", "counted", "recounted", "evaluation", "checkpoint"])


@given(st.floats(0, 4), st.lists(st.tuples(EVENTS, st.floats(0.001, 4)), max_size=12), st.floats(0, 4))
def test_the_parts_sum_to_the_wall_time(startup, events, rest):
    fit = Fit()
    began, fit.now = fit.now, fit.now + startup
    fit.engine.account.started(fit.now)
    for event, seconds in events:
        if event in {"evaluation", "checkpoint"}:
            fit.span(event, seconds)
            continue
        if event != "step":
            fit.engine.exclude(event)
        fit.step(forward=seconds, other=0.5)
    fit.now += rest
    parts = fit.engine.stop(fit.now).wall_seconds
    assert {*parts} == {
        *["startup", "first_step", "flop_counting", "steps", "evaluation", "checkpoint", "own_work", "other"]
    }
    assert min(parts.values()) >= -1e-9
    assert abs(sum(parts.values()) - (fit.now - began)) <= 0.01 * (fit.now - began) + 1e-9
