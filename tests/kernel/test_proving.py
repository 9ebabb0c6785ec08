"""An item on trial: done and left in turns, and kept if that makes steps shorter."""

import pytest
from trial_fits import StageTracker, Switch, Thing, go_together, noisy

from perf_callbacks import PerfConfig
from perf_callbacks.checklist import Startup
from perf_callbacks.kernel.engine.steps import NEVER, WATCHED_BLOCK
from perf_callbacks.kernel.engine.windows import NOTICE
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.fit.item import Fit
from perf_callbacks.kernel.fit.proving import SLOT, Proving, plan
from perf_callbacks.kernel.fit.trial import PAIRS, TURN, Trial

AFTER = 2
LAST = AFTER + 2 * PAIRS * TURN
HEARD = 1088
"""The end of the block with which the last step of the trial is seen."""
TURNS = [(AFTER + turn * TURN, Trial(AFTER).done_after(AFTER + turn * TURN)) for turn in range(2 * PAIRS + 1)]


def on_trial(*, saves, seed=0, after=AFTER):
    """An item, its trial, and the steps that it is driven by."""
    item = Switch()
    proving = Proving(item, after)
    return item, proving, StageTracker(proving, noisy(lambda: saves and item.going, seed=seed))


@pytest.mark.parametrize("seed", range(5))
def test_what_makes_steps_shorter_is_kept(seed):
    item, proving, course = on_trial(saves=True, seed=seed)
    course.go(2000)
    assert item.told == [("hold",), *[("turn", *turn) for turn in TURNS], ("keep", HEARD + 1)]
    (row,) = course.rows
    assert (row.item, row.status, proving.due) == ("switch", "applied", NEVER)
    low, saved, high = row.saved_seconds
    assert low < saved < high
    assert saved == pytest.approx(0.01, rel=0.1)
    assert row.why.startswith(f"it saves {saved * 1e3:.3g} of ")


@pytest.mark.parametrize("seed", range(1, 6))
def test_what_buys_nothing_is_undone(seed):
    item, proving, course = on_trial(saves=False, seed=seed)
    course.go(2000)
    assert item.told == [("hold",), *[("turn", *turn) for turn in TURNS], ("closed",)]
    (row,) = course.rows
    assert (row.status, proving.due) == ("skipped", NEVER)
    low, saved, high = row.saved_seconds
    assert low < saved < high
    assert row.why.startswith("it was not kept: its saving in a step of ")


def test_what_it_says_is_what_a_person_wants_to_know():
    item = Switch()
    course = StageTracker(Proving(item, AFTER), lambda _: 0.75 if item.going else 1.0).go(HEARD + 1)
    assert [row.why for row in course.rows] == [
        "it saves 250 of 1e+03 ms a step (25.0%; 99.9 % interval 250 to 250 ms, 16 pairs of turns)"
    ]
    item = Switch()
    course = StageTracker(Proving(item, AFTER), lambda _: 0.25 if item.going else 0.125).go(HEARD + 1)
    (row,) = course.rows
    assert row.why == (
        "it was not kept: it made a step of 125 ms longer by 125 ms "
        "(99.9 % interval -125 to -125 ms, 16 pairs of turns)"
    )


def test_where_too_little_was_seen_it_is_not_kept_and_nothing_is_claimed():
    item, proving, course = on_trial(saves=True)
    told, course.upkeep.steps_measured = (
        proving.steps_measured,
        lambda steps, _: told([step._replace(seconds=None) for step in steps], []),
    )
    course.go(2000)
    assert item.told[-1] == ("closed",)
    assert [(row.status, row.saved_seconds, row.why) for row in course.rows] == [
        (
            "skipped",
            None,
            "it was not kept: too few of its 16 pairs of turns were undisturbed to measure what it saves",
        )
    ]


def test_a_fit_that_goes_on_from_a_checkpoint_has_the_same_turns_later():
    item, _, course = on_trial(saves=True, after=AFTER + 500)
    course.number = 500
    course.go(500 + 2 * PAIRS * TURN + 100)
    assert item.boundaries == [(step + 500, done) for step, done in TURNS]


def test_a_turn_comes_late_after_skipped_steps_and_follows_its_step():
    item, proving, _ = on_trial(saves=False)
    for step in (1, 40, 50, 75, 300, 5000):
        if step >= proving.due:
            proving.step_ended(step)
    assert item.boundaries == [(step, Trial(AFTER).done_after(step)) for step in (40, 75, 300, 5000)]
    assert proving.due == NEVER


def test_the_item_has_its_own_steps_and_spans_meanwhile():
    item, proving, course = on_trial(saves=False)
    item._due = 17
    course.go(17)
    proving.span_began("evaluation", 17)
    proving.span_ended()
    assert item.told[-3:] == [("step_ended", 17), ("span_began", "evaluation", 17), ("span_ended",)]
    assert proving.due == 17


@pytest.mark.parametrize("until", [1, 20, 40, 70, LAST, HEARD])
def test_a_fit_that_ends_in_the_midst_leaves_nothing_behind(until):
    item, proving, course = on_trial(saves=True)
    course.go(until)
    proving.closed()
    proving.closed()
    assert (item.going, item.told[-1], proving.due) == (False, ("closed",), NEVER)
    course.go(2000)
    assert (item.going, item.boundaries) == (False, [turn for turn in TURNS if turn[0] <= until])
    assert course.rows == []


@pytest.mark.parametrize("at", [10, 40, 70, 500, LAST + 5])
def test_an_item_that_gives_up_is_tried_no_longer_and_says_why(at):
    item, proving, course = on_trial(saves=True)
    course.go(at)
    item.give_up()
    course.go(2000)
    assert item.boundaries == [turn for turn in TURNS if turn[0] <= at]
    assert ([(row.status, row.why) for row in course.rows], item.going) == ([("skipped", "enough of it")], False)
    assert proving.due == NEVER


def test_an_item_that_gives_up_when_it_is_to_be_kept_saves_nothing():
    item, _, course = on_trial(saves=True)
    item.keep = lambda step: item.give_up()
    course.go(2000)
    assert [(row.status, row.saved_seconds) for row in course.rows] == [("skipped", None)]


def two_ranks(*, saves):
    """One item on each of two ranks."""
    trials = [on_trial(saves=saved, seed=seed) for seed, saved in enumerate(saves)]
    return [item for item, *_ in trials], [course for *_, course in trials]


def test_ranks_keep_it_after_the_same_step_though_they_hear_of_it_apart():
    items, courses = two_ranks(saves=(True, True))
    go_together(courses, 2000, heard_late=lambda rank: 40 * rank)
    assert [item.told[-1] for item in items] == [("keep", HEARD + NOTICE * WATCHED_BLOCK)] * 2
    assert [[row.status for row in course.rows] for course in courses] == [["applied"]] * 2


def test_what_one_rank_does_not_gain_by_none_keeps():
    items, courses = two_ranks(saves=(True, False))
    go_together(courses, 2000)
    assert [item.told[-1] for item in items] == [("closed",)] * 2
    (here,), (there,) = [course.rows for course in courses]
    assert (here.status, there.status) == ("skipped", "skipped")
    assert here.why.startswith("it was not kept, because other ranks don't gain: here it saves ")
    assert there.why.startswith("it was not kept: its saving in a step of ")


def test_where_the_item_of_one_rank_gave_up_none_keeps_it():
    items, courses = two_ranks(saves=(True, True))
    go_together(courses, 300)
    items[1].give_up()
    go_together(courses, 2000)
    assert [item.going for item in items] == [False, False]
    (here,), (there,) = [course.rows for course in courses]
    assert here.why.startswith("it was not kept, because other ranks don't gain: here it saves ")
    assert there.why == "enough of it"


def fit(*, proving=True, **config):
    return Fit(config=PerfConfig(**config), environment=environment.read(), step=0, memory=dict, proving=proving)


def test_two_items_are_tried_one_after_the_other_and_judged_apart():
    one, other = Switch("one"), Switch("other")
    rows = []
    startup = Startup(fit(), (Thing(one), Thing(other)), write=rows.append)
    startup.announce()
    second = AFTER + SLOT
    assert [(row.item, row.status, row.after, row.why) for row in startup.rows] == [
        ("one", "on trial", "otherwise", plan(AFTER)),
        ("other", "on trial", "otherwise", plan(second)),
    ]
    course = StageTracker(startup, noisy(lambda: other.going), rows).go(second + LAST + SLOT)
    assert one.boundaries == TURNS
    assert other.boundaries == [(step + second - AFTER, done) for step, done in TURNS]
    assert (one.told[-1], other.told[-1][0]) == (("closed",), "keep")
    assert [(row.item, row.status) for row in course.rows[2:]] == [("one", "skipped"), ("other", "applied")]
    startup.closed()
    assert (one.going, other.going) == (False, False)


def test_an_untriable_item_is_applied_and_the_others_follow_other_ranks():
    one, other = Switch("one"), Switch("other")
    one.alive = False
    startup = Startup(fit(), (Thing(one), Thing(other)))
    assert [(row.status, row.why) for row in startup.rows] == [
        ("applied", "because"),
        ("on trial", plan(AFTER + SLOT)),
    ]
    assert (one.going, one.told) == (True, [])


def test_what_is_not_to_be_tried_is_applied():
    one = Switch()
    startup = Startup(fit(proving=False), (Thing(one),))
    assert ([row.status for row in startup.rows], one.told) == (["applied"], [])


def test_what_came_of_a_trial_is_kept_for_the_summary():
    """And no news that is none of that."""
    one, journal = Switch("one"), []
    startup = Startup(fit(), (Thing(one),), write=journal.append)
    startup.announce()
    assert startup.summary()["proofs"] == {"one": "on trial"}
    one._say("applied", "collected at once")
    course = StageTracker(startup, noisy(lambda: one.going), journal)
    course.go(LAST)
    assert startup.summary()["proofs"] == {"one": "on trial"}
    course.go(2000)
    assert startup.summary()["proofs"] == {"one": journal[-1].why}
    assert journal[-1].why.startswith("it saves ")


@pytest.mark.parametrize("give_up", [True, False])
def test_that_nothing_came_of_a_trial_is_kept_for_the_summary(give_up):
    one, journal = Switch("one"), []
    startup = Startup(fit(), (Thing(one),), write=journal.append)
    startup.announce()
    course = StageTracker(startup, lambda _: 0.1, journal).go(300)
    if give_up:
        one.give_up()
    else:
        told = startup.steps_measured
        startup.steps_measured = lambda steps, _: told([step._replace(seconds=None) for step in steps], [])
    course.go(2000)
    assert startup.summary()["proofs"] == {"one": journal[-1].why}
    assert journal[-1].status == "skipped"
