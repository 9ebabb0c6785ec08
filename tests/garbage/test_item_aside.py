"""What a trial of garbage collection does for its own sake is part of no step."""

from contextlib import contextmanager

import pytest
from collector import FakeGc, put

from perf_callbacks import PerfConfig
from perf_callbacks.garbage.item import FULL, YOUNG, ScheduledCollection
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.fit.item import Fit

IN_FULL = ["aside", FULL, "back"]


@pytest.fixture
def told(monkeypatch):
    """What was collected, and what of it aside."""
    fake, told = put(monkeypatch, FakeGc()), []
    collect = fake.collect
    monkeypatch.setattr(fake, "collect", lambda generation=FULL: told.append(generation) or collect(generation))
    yield told
    assert fake.automatic


@pytest.fixture
def item(told):
    @contextmanager
    def aside():
        told.append("aside")
        yield
        told.append("back")

    item = ScheduledCollection(
        Fit(config=PerfConfig(), environment=environment.read(), step=0, memory=dict, aside=aside)
    )
    item.hold()
    yield item
    item.closed()


def go(item, first, until):
    for step in range(first, until + 1):
        if step >= item.due:
            item.step_ended(step)


def test_the_beginning_is_part_of_no_step_what_is_collected_for_a_turn_is(item, told):
    for step, done in enumerate([False, True, True, False, False], 1):
        item.turn(step, done=done)
    assert told == [*IN_FULL, YOUNG, YOUNG]


@pytest.mark.parametrize(
    ("done", "then", "ending"),
    [
        (False, False, []),
        (False, True, []),
        (True, True, [YOUNG]),
        (True, False, [YOUNG]),
    ],
)
def test_a_full_collection_due_within_a_turn_is_made_after_it(item, told, done, then, ending):
    """The young one of that very step is part of it."""
    item.turn(960, done=done)
    assert told == IN_FULL
    told.clear()
    go(item, 961, 1010)
    within = [YOUNG] if done else []
    assert told == within
    item.turn(1010, done=then)
    assert told == [*within, *IN_FULL, *ending]
    told.clear()
    go(item, 1011, 1040)
    item.turn(1040, done=False)
    assert told == ([YOUNG] if then else [])


def test_when_it_is_left_for_good_what_piled_up_is_collected_aside(item, told):
    item.turn(2, done=True)
    item.turn(34, done=False)
    told.clear()
    item.leave(60)
    assert told == IN_FULL
