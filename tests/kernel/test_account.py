"""The account of a fit's wall time: what goes where."""

from fakes import Fit

STEP = {"data": 0.25, "forward": 0.5, "backward": 1.0, "optimizer": 0.125, "other": 0.125}


def test_each_second_goes_to_one_part():
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


def test_all_time_of_counted_steps_is_counting_if_no_other_is_known():
    fit = Fit()
    fit.step(**STEP)
    fit.engine.exclude("counted")
    fit.step(**STEP)
    parts = fit.engine.stop(fit.now).wall_seconds
    assert (parts["flop_counting"], parts["steps"]) == (2.0, 0.0)


def test_a_fit_without_a_step_is_startup_and_other():
    fit = Fit()
    fit.now += 1
    fit.engine.account.started(fit.now)
    parts = fit.engine.stop(fit.now + 2).wall_seconds
    assert {name: seconds for name, seconds in parts.items() if seconds} == {"startup": 1.0, "other": 2.0}


def test_nobody_knows_the_wall_time_without_the_time():
    assert Fit().engine.summary().wall_seconds == {}


def test_the_trainer_may_begin_before_the_callback_measures():
    fit = Fit()
    fit.engine.account.before_seconds = 4.0
    fit.now += 1
    fit.engine.account.started(fit.now)
    fit.step(**STEP)
    parts = fit.engine.stop(fit.now + 0.5).wall_seconds
    assert {name: seconds for name, seconds in parts.items() if seconds} == {
        "startup": 5.0,
        "first_step": 2.0,
        "other": 0.5,
    }


def test_checkpoints_of_the_same_moment_count_once():
    fit = Fit()
    for files in (2, 0, 1):
        fit.step(**STEP)
        for _ in range(files):
            fit.span("checkpoint", 1)
    summary = fit.engine.stop(fit.now)
    assert (summary.span_counts, summary.span_seconds) == ({"checkpoint": 2}, {"checkpoint": 3.0})
