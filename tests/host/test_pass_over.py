"""Turns without automatic collection, after which the real collector goes on from where it had come to."""

import gc
from contextlib import contextmanager

import pytest

from perf_callbacks.host import gc_observer
from perf_callbacks.host.collector import Collector, generational
from perf_callbacks.host.gc_observer import GcObserver

pytestmark = pytest.mark.skipif(
    not generational(), reason="without a young generation there are no counts of its collections to be restored"
)


@pytest.fixture(autouse=True)
def thresholds():
    """Nothing is collected by itself while a test looks."""
    found = gc.get_threshold()
    gc.set_threshold(1_000_000, *found[1:])
    yield found
    gc.set_threshold(*found)


@pytest.fixture
def ours(monkeypatch):
    owner = Collector()
    monkeypatch.setattr(gc_observer, "COLLECTOR", owner)
    owner._heard_of_forks = True
    ours = owner.lease()
    yield ours
    ours.let_go()


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
    assert ours.turn_off()
    meanwhile()
    gc.collect(1)
    ours.pass_over(before)


@contextmanager
def called(callback):
    gc.callbacks.append(callback)
    try:
        yield
    finally:
        gc.callbacks.remove(callback)


@contextmanager
def observed():
    """The generations of which collections are reported."""
    seen = []
    observer = GcObserver(lambda pause: seen.append(pause.generation))
    observer.install()
    try:
        yield seen
    finally:
        observer.remove()


@pytest.mark.parametrize(("younger", "older"), [(0, 0), (3, 0), (0, 5), (4, 7), (10, 9)])
def test_young_collections_count_as_before_and_the_turn_itself_counts_as_an_older_one(ours, younger, older):
    come_to(younger, older)
    a_turn(ours, meanwhile=lambda: gc.collect(0))
    assert (gc.get_count()[1:], gc.isenabled(), gc.get_freeze_count()) == ((younger, older + 1), True, 0)


def test_a_count_that_is_long_over_its_threshold_is_just_over_it(ours, thresholds):
    come_to(25, 0)
    a_turn(ours)
    assert gc.get_count()[1:] == (thresholds[1] + 1, 1)


def test_the_observer_reports_the_collections_of_the_turn_and_none_of_the_bookkeeping(ours):
    come_to(4, 7)
    with observed() as seen:
        a_turn(ours, meanwhile=lambda: gc.collect(0))
        assert seen == [0, 1]
        gc.collect(0)
        assert seen == [0, 1, 0]


def test_callbacks_of_others_are_called_as_ever_and_left_alone(ours):
    callbacks, seen = gc.callbacks, []

    def observe(phase, info):
        seen.append((phase, info["generation"], gc.callbacks is callbacks and gc.callbacks == found))

    come_to(4, 7)
    with called(observe):
        found = [*gc.callbacks]
        a_turn(ours)
        assert gc.callbacks is callbacks
        assert gc.callbacks == found
    assert seen == [(phase, generation, True) for generation in (1, 0, 0, 0, 0) for phase in ("start", "stop")]


@pytest.mark.parametrize("at", [1, 3])
def test_an_interrupt_in_the_midst_leaves_automatic_collection_on_and_nothing_unnoticed(ours, monkeypatch, at):
    calls = []

    def collecting(generation):
        calls.append((generation, ours._owner.unnoticed))
        if len(calls) == at:
            raise KeyboardInterrupt

    ours.turn_off()
    with monkeypatch.context() as patch:
        patch.setattr(gc, "collect", collecting)
        with pytest.raises(KeyboardInterrupt):
            ours.pass_over((0, 5, 0))
    assert calls == [(0, True)] * at
    assert (gc.isenabled(), ours._owner.unnoticed) == (True, False)
    with observed() as seen:
        gc.collect(0)
    assert seen == [0]


def test_another_fit_that_wants_it_off_keeps_it_so(ours):
    other = ours._owner.lease()
    ours.turn_off()
    other.turn_off()
    ours.pass_over((0, 2, 0))
    assert gc.get_threshold()[0] == 0
    other.let_go()
    assert gc.get_threshold()[0] != 0


def test_what_somebody_turned_off_stays_off(ours):
    gc.disable()
    try:
        assert not ours.turn_off()
        ours.pass_over((0, 2, 3))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_turn_after_turn_older_objects_are_looked_at_when_they_would_have_been(ours, thresholds):
    """Ten young ones make an older one, also where turns lie between them."""
    gc.collect()
    for turn in range(1, thresholds[1] + 1):
        gc.collect(0)
        a_turn(ours)
        assert gc.get_count()[1:] == (turn, turn)
