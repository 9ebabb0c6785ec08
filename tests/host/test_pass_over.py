"""Turns without automatic collection, after which the real collector goes on as if they had not been."""

import gc

import pytest

from perf_callbacks.host.custody import OWN_FROZEN, Custody, generational

pytestmark = pytest.mark.skipif(not generational(), reason="this collector counts otherwise")


@pytest.fixture(autouse=True)
def thresholds():
    """Nothing is collected by itself while a test looks."""
    found = gc.get_threshold()
    gc.set_threshold(1_000_000, *found[1:])
    yield found
    gc.set_threshold(*found)


@pytest.fixture
def ours():
    ours = Custody()
    ours._heard_of_forks = True
    yield ours
    ours.let_go("a")


def come_to(younger, older):
    """The collector, after so many collections of its two younger generations."""
    gc.collect()
    for _ in range(older):
        gc.collect(1)
    for _ in range(younger):
        gc.collect(0)
    assert gc.get_count()[1:] == (younger, older)


def a_turn(ours, *, meanwhile=lambda: None):
    before = gc.get_count()
    assert ours.take("a")
    assert ours.turn_off("a")
    meanwhile()
    gc.collect(0)
    ours.pass_over("a", before)


@pytest.mark.parametrize("counts", [(0, 0), (3, 0), (0, 5), (4, 7), (10, 9)])
def test_the_counts_of_collections_are_as_they_were_before(ours, counts):
    come_to(*counts)
    a_turn(ours, meanwhile=lambda: gc.collect(1))
    assert (gc.get_count()[1:], gc.isenabled(), gc.get_freeze_count()) == (counts, True, 0)


def test_counts_that_are_long_over_their_thresholds_are_just_over_them(ours, thresholds):
    come_to(25, 30)
    a_turn(ours)
    assert gc.get_count()[1:] == tuple(threshold + 1 for threshold in thresholds[1:])


def test_what_was_made_in_a_turn_is_old_and_makes_no_collection_come_sooner(ours):
    come_to(0, 0)
    made = []
    a_turn(ours, meanwhile=lambda: made.extend([[] for _ in range(50_000)]))
    assert gc.get_count()[0] < 1000
    old = {id(one) for one in gc.get_objects(generation=2)}
    assert all([id(one) in old for one in made])


def test_who_observes_collections_sees_those_of_the_turn_and_none_of_the_bookkeeping(ours):
    seen, callbacks, found = [], gc.callbacks, [*gc.callbacks]

    def observe(phase, info):
        seen.append((phase, info["generation"]))

    come_to(4, 7)
    gc.callbacks.append(observe)
    try:
        a_turn(ours)
        assert seen == [("start", 0), ("stop", 0)]
        assert gc.callbacks is callbacks
        assert gc.callbacks == [*found, observe]
    finally:
        gc.callbacks.remove(observe)


def test_who_appended_a_callback_meanwhile_has_it_called_still(ours, monkeypatch):
    """It comes in the midst of the bookkeeping, by another thread."""
    come_to(1, 0)
    found, late = [*gc.callbacks], lambda phase, info: None
    collect = gc.collect

    def collecting(generation=2):
        gc.callbacks.append(late)
        return collect(generation)

    before = gc.get_count()
    ours.take("a")
    ours.turn_off("a")
    with monkeypatch.context() as patch:
        patch.setattr(gc, "collect", collecting)
        ours.pass_over("a", before)
    try:
        assert gc.callbacks == [*found, late]
    finally:
        gc.callbacks.remove(late)


def test_what_somebody_froze_stays_frozen(ours):
    come_to(4, 7)
    try:
        a_turn(ours, meanwhile=gc.freeze)
        assert gc.get_freeze_count() >= OWN_FROZEN
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def test_whoever_has_it_by_now_is_not_disturbed(ours):
    come_to(0, 0)
    ours.take("a")
    ours.turn_off("a")
    ours.take("b")
    try:
        assert ours.turn_off("b")
        gc.collect(0)
        found = gc.get_count()[1:]
        ours.pass_over("a", (0, 5, 5))
        assert (gc.isenabled(), gc.get_count()[1:]) == (False, found)
    finally:
        ours.let_go("b")
    assert gc.isenabled()


def test_what_somebody_turned_off_stays_off(ours):
    gc.disable()
    try:
        ours.take("a")
        assert not ours.turn_off("a")
        ours.pass_over("a", (0, 2, 3))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_turn_after_turn_a_full_collection_comes_when_it_would_have(ours, thresholds):
    """Ten young ones make an older one, also where turns lie between them."""
    gc.collect()
    for turn in range(1, thresholds[1] + 1):
        gc.collect(0)
        a_turn(ours, meanwhile=lambda: [gc.collect(1) for _ in range(3)])
        assert gc.get_count()[1:] == (turn, 0)
