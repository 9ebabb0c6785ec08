"""Advice while training goes on: at most one line in a while, and each cause once."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from advised import summary
from fakes import FakeClock

from perf_callbacks.advice.live_line import MOST_STEPS, QUIET_SECONDS, WINDOW_SECONDS, LiveAdvice, between
from perf_callbacks.kernel.records.fit_records import Finding


def cause(name, share=0.5):
    return Finding(cause=name, share=share, evidence=f"{name} took 50% of the run", remedy="nothing")


@pytest.fixture
def fit():
    """A fit with steps of a second, and what its windows find."""
    clock, said = FakeClock(), []
    engine = SimpleNamespace(summary=lambda now: summary(steps=1 + round(now - 1000.0)))
    observers = SimpleNamespace(findings=None)
    live = LiveAdvice(SimpleNamespace(step=0, clock=clock, engine=engine, observers=observers), said.append)

    def train(seconds, *findings, pace=1.0):
        observers.findings, done = lambda window: seen.append(window) or findings, fit.step + round(seconds / pace)
        while fit.step < done:
            fit.step += 1
            clock.sleep(pace)
            if fit.step >= live.due:
                fit.looks += 1
                live.step_ended(fit.step)

    seen = []
    fit = SimpleNamespace(train=train, said=said, seen=seen, step=0, looks=0, live=live, engine=engine)
    return fit


def test_a_cause_is_told_when_it_has_held_for_a_window(fit):
    fit.train(WINDOW_SECONDS - 1, cause("data"))
    assert fit.said == []
    fit.train(2, cause("data"))
    (line,) = fit.said
    assert " ".join(line.split()) == ("perf_callbacks: data took 50% of the last 61 s; try nothing. Up to 2.0x faster.")


def test_a_cause_is_told_once(fit):
    fit.train(5 * QUIET_SECONDS, cause("data"))
    assert len(fit.said) == 1


def test_the_next_cause_is_told_after_a_while(fit):
    fit.train(2 * WINDOW_SECONDS, cause("data"))
    fit.train(QUIET_SECONDS / 2, cause("gc"))
    assert len(fit.said) == 1
    fit.train(QUIET_SECONDS, cause("gc"))
    assert [line.split()[1] for line in fit.said] == ["data", "gc"]


@pytest.mark.parametrize("findings", [(), (cause("data", 0.05),), (cause("sync", None),)])
def test_a_small_share_waits_for_the_end(fit, findings):
    fit.train(10 * WINDOW_SECONDS, *findings)
    assert fit.said == []


def test_the_steps_before_a_window_are_not_in_it(fit):
    fit.train(5 * WINDOW_SECONDS)
    assert [window.included_steps for window in fit.seen[1:]] == [WINDOW_SECONDS + 1] * (len(fit.seen) - 1)


@pytest.mark.parametrize("pace", [0.001, 1.0, 50.0])
def test_steps_are_looked_at_about_once_per_window(fit, pace):
    fit.train(10 * WINDOW_SECONDS, pace=pace)
    assert len(fit.seen) in range(5, 11)
    assert fit.looks <= 10 * (1 + WINDOW_SECONDS / min(pace * MOST_STEPS, WINDOW_SECONDS) + 1)


def test_a_failure_ends_this_advice_alone(fit, caplog):
    fit.engine.summary = lambda now: 1 / 0
    fit.train(10 * WINDOW_SECONDS, cause("data"))
    assert (len(caplog.records), fit.said) == (1, [])


def test_a_window_has_the_seconds_since_the_last():
    before = replace(summary(steps=10, data=1.0, gc={"gc_seconds": 1.0, "gc_collections": (1, 1, 0)}), span_counts={})
    after = summary(
        steps=30,
        data=2.0,
        gc={"gc_seconds": 4.0, "gc_collections": (5, 1, 1), "gc_scheduled_seconds": 0.5},
        spans={"evaluation": 7.0},
        counts={"evaluation": 2},
    )
    window = between(before, after)
    assert (window.included_steps, window.stage_seconds["data_time"]) == (20, 50.0)
    assert (window.gc.seconds, window.gc.collections, window.gc.scheduled_seconds) == (3.0, (4, 0, 1), 0.5)
    assert (window.wall_seconds["startup"], window.wall_seconds["evaluation"]) == (0.0, 7.0)
    assert window.span_counts == {"evaluation": 2}
