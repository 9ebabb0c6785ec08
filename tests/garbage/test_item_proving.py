"""Garbage collection by the step counter, on trial; and how often, as ranks agree on it."""

import pytest
from collector import FakeGc, put
from trial_fits import StageTracker, noisy

from perf_callbacks import PerfConfig
from perf_callbacks.checklist import Startup
from perf_callbacks.garbage.item import ELSEWHERE, FULL, ITEM, YOUNG, ScheduledCollection
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.fit.item import Fit
from perf_callbacks.kernel.fit.proving import Proving
from perf_callbacks.kernel.fit.trial import PAIRS, TURN, Trial

AFTER = 2
LAST = AFTER + 2 * PAIRS * TURN
KEPT = 1089
"""The step after which it is known and done."""
DONE_AFTER = Trial(AFTER).done_after
BOUNDARIES = range(AFTER + TURN, LAST, TURN)


def between(*ways):
    """The first step after which one of two such turns ends and the other begins."""
    return next(step for step in BOUNDARIES if (DONE_AFTER(step - 1), DONE_AFTER(step)) == ways)


@pytest.fixture
def fake(monkeypatch):
    return put(monkeypatch, FakeGc())


def fit(*, proving=True, step=0, **config):
    return Fit(config=PerfConfig(**config), environment=environment.read(), step=step, memory=dict, proving=proving)


def tried(fake, *, saves=True, **config):
    """A fit in which it is on trial: steps are shorter while nothing is collected by itself."""
    rows = []
    upkeep = Startup(fit(**config), (ITEM,), write=rows.append)
    upkeep.announce()
    return upkeep, StageTracker(upkeep, noisy(lambda: saves and not fake.automatic), rows)


@pytest.mark.parametrize("interval", [TURN, 45, 100, 1000])
def test_turns_done_collect_young_objects_by_the_counter_and_at_the_end(fake, interval):
    """Full collections come after turns: before the first one, and after the one in which the counter says so."""
    _, course = tried(fake, gc_interval=interval)
    for number in range(1, KEPT):
        fake.collected.clear()
        done = DONE_AFTER(number - 1)
        course.before_end = lambda _, done=done: fake.automatic is not done or pytest.fail("the other way round")
        course.go(number)
        due = [YOUNG] if done and number % interval == 0 else []
        if number in BOUNDARIES or number in {AFTER, LAST}:
            piled_up = number == AFTER or number // (10 * interval) > (number - TURN) // (10 * interval)
            due += [FULL] * piled_up + [YOUNG] * done
        assert (fake.collected, fake.frozen) == (due, 0)
    assert fake.automatic


def test_a_kept_item_collects_by_the_counter_and_freezes_at_the_first(fake):
    upkeep, course = tried(fake, gc_interval=100)
    found = fake.state
    course.go(KEPT - 1)
    fake.collected.clear()
    course.go(KEPT)
    assert (fake.collected, fake.state[:2]) == ([], (False, False))
    course.go(2000)
    assert fake.collected == [1] * 9 + [FULL]
    assert fake.state[:2] == (False, True)
    assert [(row.item, row.status) for row in course.rows] == [("gc", "on trial"), ("gc", "applied")]
    upkeep.closed()
    assert fake.state == found


def test_an_item_that_is_not_kept_has_frozen_nothing(fake):
    """What piled up is collected once."""
    upkeep, course = tried(fake, saves=False)
    found = fake.state
    course.go(KEPT - 1)
    fake.collected.clear()
    course.go(1500)
    assert (fake.collected, fake.state) == ([FULL], found)
    assert [(row.item, row.status) for row in course.rows] == [("gc", "on trial"), ("gc", "skipped")]
    assert upkeep.due == NEVER


@pytest.mark.parametrize("at", [between(True, True) - 22, between(True, False) - 22, LAST - 1])
def test_what_somebody_turns_on_in_a_turn_stays_on_for_good(fake, at):
    """Be the next turn one that is done or one that is left."""
    upkeep, course = tried(fake, gc_interval=1000)
    course.go(at)
    assert not fake.automatic
    fake.set_threshold(900, 10, 10)
    fake.collected.clear()
    boundary = at + TURN - (at - AFTER) % TURN
    course.before_end = lambda number: fake.automatic or pytest.fail(f"off in step {number}")
    course.go(1500)
    assert [(row.item, row.status) for row in course.rows] == [("gc", "on trial"), ("gc", "skipped")]
    assert (
        course.rows[1].why
        == f"the program changed the collector's thresholds before step {boundary}, and the callback leaves them"
    )
    upkeep.closed()
    assert fake.state[:2] == (True, False)
    assert fake.collected == []


@pytest.mark.parametrize("at", [20, between(False, True), between(False, False), LAST + 1, KEPT - 1])
def test_what_somebody_turns_off_while_it_is_left_stays_off(fake, at):
    upkeep, course = tried(fake)
    course.go(at - 1)
    fake.disable()
    course.go(1500)
    upkeep.closed()
    assert fake.state[:2] == (False, False)
    assert course.rows[-1].status == "already so"


@pytest.mark.parametrize("at", [between(*ways) - 22 for ways in [(False, True), (True, True), (True, False)]])
def test_a_fit_within_a_turn_shares_the_collector_and_the_trial_goes_on(fake, at):
    upkeep, course = tried(fake)
    course.go(at)
    way = fake.automatic
    inner = ScheduledCollection(fit())
    inner.step_ended(2)
    assert fake.state[:2] == (False, False)
    inner.closed()
    assert fake.state[:2] == (way, False)
    for boundary in [step for step in BOUNDARIES if step > at]:
        course.go(boundary + 1)
        assert fake.state[:2] == (not DONE_AFTER(boundary), False)
    course.go(1500)
    assert course.rows[-1].status == "applied"
    upkeep.closed()
    assert fake.state[:2] == (True, False)


def test_a_trial_ends_when_another_fit_is_under_way(fake):
    upkeep, course = tried(fake)
    boundary = between(False, True)
    course.go(boundary - 1)
    inner = ScheduledCollection(fit())
    inner.step_ended(2)
    course.go(boundary + 5)
    assert (course.rows[-1].status, course.rows[-1].why) == ("skipped", ELSEWHERE)
    assert fake.state[:2] == (False, False)
    inner.closed()
    upkeep.closed()
    assert fake.state[:2] == (True, False)


@pytest.mark.parametrize("kind", ["evaluation", "checkpoint"])
def test_a_span_collects_in_a_turn_done_and_changes_nothing_in_one_left(fake, kind):
    upkeep, course = tried(fake)
    for number in range(1, AFTER + 8 * TURN):
        course.go(number)
        way, _ = fake.automatic, fake.collected.clear()
        upkeep.span_began(kind, number)
        assert fake.automatic
        upkeep.span_ended()
        assert (fake.automatic, fake.collected) == (way, [])


@pytest.mark.parametrize("until", [1, AFTER + 5, AFTER + TURN + 5, LAST + 5, 1200])
def test_a_fit_that_ends_in_the_midst_leaves_the_collector_as_found(fake, until):
    found = fake.state
    upkeep, course = tried(fake)
    course.go(until)
    upkeep.closed()
    assert fake.state == found


def test_freezing_alone_is_not_tried_but_done(fake):
    """What a full collection looks at can't be changed back and forth unnoticed."""
    upkeep, course = tried(fake, gc="freeze")
    assert [(row.item, row.status) for row in upkeep.rows] == [("gc", "applied")]
    course.go(200)
    assert (fake.collected, fake.state[:2], upkeep.due) == ([FULL], (True, True), NEVER)
    upkeep.closed()
    assert fake.state[:2] == (True, False)


@pytest.mark.parametrize(("interval", "status"), [(1, "applied"), (TURN - 1, "applied"), (TURN, "on trial")])
def test_full_collections_in_each_turn_are_done_without_a_trial(fake, interval, status):
    upkeep, course = tried(fake, gc_interval=interval)
    assert [(row.item, row.status) for row in upkeep.rows] == [("gc", status)]
    course.go(AFTER)
    assert (fake.collected, fake.automatic) == (([], False) if status == "applied" else ([FULL], True))
    upkeep.closed()
    assert fake.state[:2] == (True, False)


def test_ranks_that_agree_in_different_turns_keep_to_the_same_steps(fake):
    """One hears of it while it is done, and one while it is left."""

    def rank(heard):
        item = ScheduledCollection(fit(gc_interval=100))
        upkeep, found = Proving(item, AFTER), []
        for number in range(1, 1500):
            fake.collected.clear()
            if number >= upkeep.due:
                upkeep.step_ended(number)
            found += [(number, generation) for generation in fake.collected]
            if number == heard:
                upkeep.agreed({"gc_interval": 50}, 300)
            if number == 1100:
                upkeep.agreed({"gc_interval": 50, "keep gc": 1}, 1150)
            if number == 1200:
                upkeep.agreed({"gc_interval": 50, "keep gc": 1}, 1310)
        upkeep.closed()
        return found

    one, other = rank(between(True, False) - 5), rank(between(True, False) + 5)
    assert one == other
    assert [number for number, _ in one if number > LAST] == [1200, 1250, 1300, 1350, 1400, 1450]
