"""The account of a fit's wall time: what goes where."""

from fakes import STEP, Fit


def test_each_second_goes_to_a_single_part():
    fit = Fit()
    fit.now += 3
    fit.engine.account.started(fit.now)
    fit.step(**STEP)  # the first one
    fit.engine.exclude("counted")
    fit.step(**STEP | {"forward": 1.5})
    for _ in range(3):
        fit.step(**STEP)
    fit.span("evaluation", 8)
    fit.step(**STEP)
    fit.span("checkpoint", 4)
    fit.now += 0.5  # a step that does not end
    assert fit.engine.stop(fit.now).wall_seconds == {
        "startup": 3.0,
        "first_step": 2.0,
        "flop_counting": 1.0,
        "steps": 10.0,
        "evaluation": 8.0,
        "checkpoint": 4.0,
        "own_work": 0.0,
        "other": 0.5,
    }


def test_counted_steps_alone_are_all_counting():
    fit = Fit()
    fit.step(**STEP)
    fit.engine.exclude("counted")
    fit.step(**STEP)
    parts = fit.engine.stop(fit.now).wall_seconds
    assert (parts["flop_counting"], parts["steps"]) == (2.0, 0.0)


def above_zero(parts):
    return {name: seconds for name, seconds in parts.items() if seconds}


def test_a_fit_without_a_step_is_startup_and_other():
    fit = Fit()
    fit.now += 1
    fit.engine.account.started(fit.now)
    assert above_zero(fit.engine.stop(fit.now + 2).wall_seconds) == {"startup": 1.0, "other": 2.0}


def test_an_engine_that_is_not_told_the_time_has_no_account():
    assert Fit().engine.summary().wall_seconds == {}


def test_the_trainer_may_begin_before_the_callback_measures():
    fit = Fit()
    fit.engine.account.before_seconds = 4.0
    fit.now += 1
    fit.engine.account.started(fit.now)
    fit.step(**STEP)
    parts = above_zero(fit.engine.stop(fit.now + 0.5).wall_seconds)
    assert parts == {"startup": 5.0, "first_step": 2.0, "other": 0.5}


def test_checkpoints_of_the_same_moment_count_once():
    fit = Fit()
    for files in (2, 0, 1):
        fit.step(**STEP)
        for _ in range(files):
            fit.span("checkpoint", 1)
    summary = fit.engine.stop(fit.now)
    assert (summary.span_counts, summary.span_seconds) == ({"checkpoint": 2}, {"checkpoint": 3.0})
