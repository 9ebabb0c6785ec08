"""Laws of the engine under any legal sequence of events. Lengths are binary fractions: equal means exactly equal."""

import pytest
from fakes import Fit
from hypothesis import given, strategies as st

from perf_callbacks.kernel.engine.engine import LATE_SECONDS
from perf_callbacks.kernel.records.fit_records import Gc, Span, Steps

STAGES = ("data", "forward", "backward", "optimizer", "other")
SECONDS = st.integers(0, 2**16).map(lambda units: units / 1024)
SIX_FIGURES = 5e-6  # what metrics are rounded to

EVENTS = st.one_of(
    st.tuples(st.just("spend"), st.sampled_from([*STAGES, "undecided"]), SECONDS),
    st.tuples(st.just("feed"), st.integers(0, 64), st.integers(0, 4096)),
    st.tuples(st.just("pause"), SECONDS, st.booleans()),
    st.tuples(st.just("begin_span"), st.sampled_from(["evaluation", "checkpoint"]), SECONDS),
    st.tuples(st.just("end_span")),
    st.tuples(st.just("end_step")),
    st.tuples(st.just("write_late")),
)


def tell(fit, event, *details):
    """Tell a fit of one event."""
    if event == "pause":
        fit.pause(details[0], here=details[1])
    elif event == "begin_span":
        fit.engine.begin_span(details[0], fit.now)
        fit.now += details[1]
    elif event == "end_span":
        fit.engine.end_span(fit.now)
    elif event == "write_late":  # as the watchdog does, whatever the training thread is about to do
        fit.engine.write_late(fit.now + LATE_SECONDS)
    else:
        getattr(fit, event)(*details)


def played(events):
    fit = Fit()
    for event in events:
        tell(fit, *event)
    fit.end_step()
    return fit


@given(st.lists(EVENTS, max_size=60))
def test_no_time_is_lost_or_counted_twice(events):
    fit = played(events)
    steps = fit.steps()
    assert [step["step"] for step in steps] == list(range(1, fit.number + 1))
    spans = [span.seconds for span in fit.of(Span)]
    assert sum(step["step_time"] for step in steps) + sum(spans) == fit.now - 1000.0
    assert min(spans, default=0) >= 0
    for step in steps:
        stages = [step.get(f"{stage}_time", 0) for stage in (*STAGES, "gc")]
        assert min(stages) >= 0
        assert sum(stages) == step["step_time"]
    inside = [gc.seconds for gc in fit.of(Gc) if gc.stage in STAGES]
    assert len(fit.of(Gc)) == sum(event[0] == "pause" for event in events)
    assert {gc.stage for gc in fit.of(Gc)} <= {*STAGES, "aside", "elsewhere"}
    assert sum(inside) == sum(step["gc_time"] for step in steps)


@given(st.lists(EVENTS, max_size=60))
def test_early_writing_changes_no_step_and_no_other_record(events):
    early, plain = played(events), played([event for event in events if event != ("write_late",)])
    assert [*map(without_unknown, early.steps())] == [*map(without_unknown, plain.steps())]
    others = [[record for record in fit.records if not isinstance(record, Steps)] for fit in (early, plain)]
    assert others[0] == others[1]


@given(st.lists(EVENTS, max_size=60), SECONDS, SECONDS)
def test_time_after_the_last_step_is_in_no_step(events, tail, pause):
    fit = played(events)
    before = fit.steps()
    fit.spend("forward", tail)
    fit.pause(pause)
    assert fit.engine.stop(fit.now).steps == len(fit.steps()) == len(before)


@given(st.lists(EVENTS | st.tuples(st.just("row")), max_size=60))
def test_rows_over_any_part_of_a_fit_are_ratios_of_the_sums_of_its_steps(events):
    fit, rows, cuts = Fit(), [], [0]
    for event in [*events, ("end_step",), ("row",)]:
        if event == ("row",):
            rows.append(without_longest(fit.engine.row(fit.number)))
            cuts.append(fit.number)
        else:
            tell(fit, *event)
    steps = fit.steps()
    for row, first, last in zip(rows, cuts, cuts[1:], strict=False):
        assert row == pytest.approx(naive(steps[first:last]), rel=SIX_FIGURES)
    whole = {name.replace("run/", ""): value for name, value in fit.engine.whole(fit.number).items()}
    assert without_longest(whole) == pytest.approx(naive(steps), rel=SIX_FIGURES)


def without_unknown(step):
    """Without the values that a block of steps may leave out: the unknown, and times of 0."""
    values = {name: value for name, value in step.items() if value is not None}
    return {name: value for name, value in values.items() if value or not name.endswith("_time")}


def without_longest(row):
    """A row without its longest pause, which the sums don't tell."""
    return without_zeros({name: value for name, value in row.items() if name != "perf/gc_pause"})


def without_zeros(row):
    """Without stages of 0: whether one was entered for no time at all or never, the columns don't tell."""
    return {
        name: value for name, value in row.items() if value or name not in {f"perf/{stage}_time" for stage in STAGES}
    }


def naive(steps):
    included = [step for step in steps if step["excluded"] is None]
    seconds = sum(step["step_time"] for step in included)
    if not seconds:
        return {}
    names = [f"{stage}_time" for stage in (*STAGES, "gc", "step")]
    times = {name: sum(step.get(name, 0) for step in included) / len(included) for name in names}
    pauses = {"gc_loss": sum(step["gc_time"] for step in included)}
    rates = {}
    for name in ("samples", "tokens"):
        amounts = [step.get(name) for step in included]
        if None not in amounts:
            rates[f"{name}_per_second"] = sum(amounts) / seconds
    return without_zeros({f"perf/{name}": value for name, value in (times | pauses | rates).items()})
