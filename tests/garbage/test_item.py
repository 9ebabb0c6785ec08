"""Collections by the step counter: when they come, what they free, and that everything is as found afterwards."""

import gc
import weakref
from types import SimpleNamespace

import pytest
from collector import FakeGc, put

from perf_callbacks import PerfConfig
from perf_callbacks.garbage import growth, item as gc_item
from perf_callbacks.garbage.item import FULL, YOUNG, ScheduledCollection
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.fit.item import Fit

MB = 1_000_000


class Memory(dict):
    def __call__(self):
        return dict(self)


@pytest.fixture
def fake(monkeypatch):
    return put(monkeypatch, FakeGc())


@pytest.fixture
def begin():
    """Begins fits, all of which are closed at the end."""
    begun = []

    def one(*, step=0, memory=dict, progress=None, **config):
        config = PerfConfig(**config)
        fit = Fit(config=config, environment=environment.read(), step=step, memory=memory, progress=progress)
        begun.append(ScheduledCollection(fit))
        return begun[-1]

    yield one
    for upkeep in begun:
        upkeep.closed()


def go(upkeep, fake, steps, *, first=1):
    """Go through steps as a recorder does; which collections came at which."""
    found = []
    for step in range(first, first + steps):
        fake.collected.clear()
        if step >= upkeep.due:
            upkeep.step_ended(step)
        found += [(step, generation) for generation in fake.collected]
    return found


def test_the_counter_collects_from_step_2_and_a_full_collection_freezes(fake, begin):
    found = fake.state
    upkeep = begin(gc_interval=10)
    assert go(upkeep, fake, 1) == []
    assert fake.state == found
    assert go(upkeep, fake, 98, first=2) == [(step, YOUNG) for step in range(10, 100, 10)]
    assert fake.state[:2] == (False, False)
    young = [(step, YOUNG) for step in range(110, 200, 10)]
    assert go(upkeep, fake, 101, first=100) == [(100, FULL), *young, (200, FULL)]
    assert fake.state[:2] == (False, True)
    upkeep.closed()
    assert fake.state == found
    assert go(upkeep, fake, 100, first=201) == []


def test_a_resumed_fit_begins_two_steps_later_and_keeps_to_the_same_steps(fake, begin):
    upkeep = begin(step=95, gc_interval=10)
    assert go(upkeep, fake, 1, first=96) == []
    assert fake.automatic
    assert go(upkeep, fake, 19, first=97) == [(100, FULL), (110, YOUNG)]
    assert not fake.automatic


def test_a_short_fit_makes_no_collection_at_all(fake, begin):
    upkeep = begin()
    assert go(upkeep, fake, 99) == []
    upkeep.span_began("evaluation", 99)
    upkeep.span_ended()
    upkeep.span_began("checkpoint", 99)
    upkeep.span_ended()
    upkeep.closed()
    assert (fake.collected, fake.state[:2]) == ([], (True, False))


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_short_intervals_are_kept_to(fake, begin, interval):
    upkeep = begin(gc_interval=interval)
    found = go(upkeep, fake, 60)
    due = [step for step in range(3, 61) if step % interval == 0]
    assert found == [(step, YOUNG if step % (interval * 10) else FULL) for step in due]


def test_a_collection_of_skipped_steps_comes_late_and_once(fake, begin):
    upkeep = begin(gc_interval=10)
    go(upkeep, fake, 2)
    fake.collected.clear()
    for step in (27, 99, 105):
        upkeep.step_ended(step)
    assert fake.collected == [YOUNG, YOUNG, FULL]


def test_without_young_generations_every_collection_is_full(monkeypatch, begin):
    fake = put(monkeypatch, FakeGc(threshold=(2000, 10, 0)))
    upkeep = begin(gc_interval=10)
    assert go(upkeep, fake, 25) == [(10, FULL), (20, FULL)]


def test_freezing_alone_leaves_automatic_collection(fake, begin):
    upkeep = begin(gc="freeze", gc_interval=10)
    assert go(upkeep, fake, 200) == [(10, FULL)]
    upkeep.span_began("evaluation", 200)
    upkeep.span_ended()
    assert (fake.state[:2], upkeep.due) == ((True, True), NEVER)
    upkeep.closed()
    assert fake.state[:2] == (True, False)


@pytest.mark.parametrize("level", ["sync", "freeze"])
def test_a_collector_that_the_program_turns_off_stays_off(fake, begin, level):
    upkeep = begin(gc=level)
    fake.disable()
    go(upkeep, fake, 500)
    upkeep.closed()
    assert fake.state[:2] == (False, False)
    assert [row.status for row in upkeep.news()] == (["already so"] if level == "sync" else [])


def test_a_collector_that_the_program_turns_on_is_told_once(fake, begin):
    upkeep = begin(gc_interval=100)
    go(upkeep, fake, 50)
    fake.set_threshold(900, 10, 10)
    assert go(upkeep, fake, 500, first=51) == []
    assert fake.state[:3] == (True, False, (900, 10, 10))
    (row,) = upkeep.news()
    assert (row.item, row.status) == ("gc", "skipped")
    assert row.why == "the program changed the collector's thresholds before step 58, and the callback leaves them"
    assert upkeep.news() == []


def test_an_evaluation_begins_with_a_full_collection_and_may_collect(fake, begin):
    upkeep = begin(gc_interval=5)
    go(upkeep, fake, 51)
    fake.collected.clear()
    upkeep.span_began("evaluation", 51)
    assert (fake.collected, fake.automatic) == ([FULL], True)
    upkeep.span_began("checkpoint", 51)
    upkeep.span_ended()
    assert fake.automatic
    upkeep.span_ended()
    upkeep.span_ended()
    assert (fake.collected, fake.automatic) == ([FULL], False)


def test_a_checkpoint_ends_with_a_full_collection(fake, begin):
    upkeep = begin(gc_interval=5)
    go(upkeep, fake, 51)
    fake.collected.clear()
    upkeep.span_began("checkpoint", 51)
    assert fake.collected == []
    upkeep.span_ended()
    assert (fake.collected, fake.automatic) == ([FULL], False)


def test_a_loop_that_evaluates_in_each_step_does_not_collect_each_time(fake, begin):
    upkeep = begin(gc_interval=100)
    go(upkeep, fake, 1000)
    found = []
    for step in range(1001, 1051):
        fake.collected.clear()
        upkeep.span_began("evaluation", step - 1)
        upkeep.span_ended()
        upkeep.step_ended(step)
        found += [step] * len(fake.collected)
    assert found == [1011, 1021, 1031, 1041]


def test_an_open_span_ends_with_its_step(fake, begin):
    upkeep = begin(gc_interval=100)
    go(upkeep, fake, 50)
    assert upkeep.due == 58
    upkeep.span_began("evaluation", 50)
    upkeep.span_began("checkpoint", 50)
    upkeep.span_ended()
    assert upkeep.due <= 51
    upkeep.step_ended(51)
    assert (fake.automatic, upkeep.due) == (False, 58)


def test_a_span_before_the_second_step_changes_nothing(fake, begin):
    upkeep = begin()
    upkeep.span_began("evaluation", 1)
    upkeep.span_ended()
    assert (fake.collected, fake.state[:2]) == ([], (True, False))


def test_garbage_that_grows_too_fast_is_collected_at_once(fake, begin):
    upkeep = begin(gc_interval=100)
    go(upkeep, fake, 20)
    fake.young = 500_001
    assert go(upkeep, fake, 110, first=21) == [(28, YOUNG), (100, YOUNG)]
    (row,) = upkeep.news()
    assert row.why == "500,001 new objects after step 28: collected at once, only on this rank"


@pytest.mark.parametrize("kind", ["host", "device"])
def test_memory_that_grows_by_a_tenth_is_collected_for_at_once_and_once(fake, begin, kind):
    memory = Memory(host=4000 * MB, device=8000 * MB)
    upkeep = begin(gc_interval=100, memory=memory)
    go(upkeep, fake, 20)
    memory[kind] += 200 * MB
    assert go(upkeep, fake, 20, first=21) == []
    memory[kind] += 1000 * MB
    assert go(upkeep, fake, 50, first=41) == [(48, FULL)]
    (row,) = upkeep.news()
    assert row.why.startswith(f"{kind} memory {memory[kind] // MB:,} MB after step 48: collected at once")


def test_memory_of_a_kind_that_was_not_known_before_is_no_growth(fake, begin):
    memory = Memory()
    upkeep = begin(memory=memory)
    go(upkeep, fake, 20)
    memory["device"] = 80_000 * MB
    assert go(upkeep, fake, 50, first=21) == []


def test_a_rank_in_danger_keeps_to_the_steps_of_the_others(fake, begin):
    """Only one of two ranks is in danger, and both evaluate."""

    def rank(*, danger):
        upkeep, found = begin(gc_interval=100), []
        for step in range(1, 301):
            fake.collected.clear()
            fake.young = 600_000 if danger and step % 90 in range(40, 55) else 10
            if step % 45 == 0:
                upkeep.span_began("evaluation", step - 1)
                upkeep.span_ended()
            if step >= upkeep.due:
                upkeep.step_ended(step)
            found += [(step, generation) for generation in fake.collected]
        upkeep.closed()
        return found

    calm, endangered = rank(danger=False), rank(danger=True)
    assert len(endangered) > len(calm)
    assert [one for one in endangered if one in calm] == calm


def test_a_nested_fit_collects_by_its_steps_and_restores_the_outer_fit(fake, begin):
    found, outer, inner = fake.state, begin(gc_interval=10), begin(gc_interval=10)
    go(outer, fake, 100)
    assert go(inner, fake, 40) == [(step, YOUNG) for step in (10, 20, 30, 40)]
    inner.closed()
    assert fake.state[:2] == (False, True)
    assert go(outer, fake, 30, first=101) == [(120, YOUNG), (130, YOUNG)]
    outer.closed()
    assert fake.state == found


def test_two_fits_that_alternate_collect_as_often_as_a_single_fit(fake, begin):
    """As the two networks of a GAN, each in a loop of its own that is measured."""
    one, other = begin(gc_interval=10), begin(gc_interval=10)
    found = []
    for step in range(1, 201):
        for upkeep in (one, other):
            fake.collected.clear()
            if step >= upkeep.due:
                upkeep.step_ended(step)
            found += [(step, generation) for generation in fake.collected]
    assert found == [(step, YOUNG if step % 100 else FULL) for step in range(10, 201, 10)]


@pytest.mark.parametrize("frozen", [False, True])
def test_an_abandoned_fit_takes_over_again_without_a_full_collection(fake, begin, frozen):
    upkeep = begin(gc_interval=10, progress=lambda: (0, 0.1))
    go(upkeep, fake, 105 if frozen else 45)
    fake.collected.clear()
    fake.owner.tick(0.0)
    assert not fake.owner.tick(10.0)
    assert (fake.collected, fake.state[:2]) == ([FULL], (True, False))
    later = 106 if frozen else 46
    assert go(upkeep, fake, 10, first=later) == [(110 if frozen else 50, YOUNG)]
    assert fake.state[:2] == (False, frozen)
    upkeep.closed()
    assert fake.state[:2] == (True, False)


def test_a_fit_without_references_is_over(fake):
    fit = Fit(config=PerfConfig(), environment=environment.read(), step=0, memory=dict)
    upkeep = ScheduledCollection(fit)
    go(upkeep, fake, 5)
    assert not fake.automatic
    del upkeep
    assert fake.state[:2] == (True, False)


class Knot:
    def __init__(self):
        self.me = self


def test_a_cycle_that_outlived_young_collections_is_freed(begin):
    """By a young collection it never would be."""
    upkeep = begin(gc_interval=1)
    upkeep.step_ended(2)
    later = Knot()
    freed = weakref.ref(later)
    upkeep.step_ended(3)
    upkeep.step_ended(4)
    del later
    for step in range(5, 10):
        upkeep.step_ended(step)
    assert freed() is not None
    upkeep.step_ended(10)
    assert freed() is None


def test_a_leak_is_noticed_soon_and_freed(monkeypatch, begin):
    monkeypatch.setattr(growth, "MOST_YOUNG", 5000)
    upkeep = begin(gc_interval=1000)
    freed = []
    for step in range(1, 40):
        knots = [Knot() for _ in range(1000)]
        freed.append(weakref.ref(knots[0]))
        del knots
        if step >= upkeep.due:
            upkeep.step_ended(step)
    alive = [reference for reference in freed if reference() is not None]
    assert len(alive) < 20
    (row,) = upkeep.news()
    assert row.why.endswith("only on this rank; requested of all ranks: collect every 500 steps")
    assert upkeep.proposals == {"gc_interval": 500}


@pytest.mark.usefixtures("thawed")
def test_the_real_collector_is_as_found_after_a_fit(begin):
    found = gc.isenabled(), gc.get_threshold(), list(gc.callbacks)
    upkeep = begin(gc_interval=1)
    upkeep.step_ended(2)
    upkeep.step_ended(10)
    assert (gc.get_threshold()[0], gc.get_freeze_count() > 10_000) == (0, True)
    upkeep.closed()
    assert (gc.isenabled(), gc.get_threshold(), list(gc.callbacks)) == found
    assert gc.get_freeze_count() < 10_000


@pytest.mark.usefixtures("thawed")
def test_the_item_says_its_status_and_the_thresholds():
    usual = environment.read()
    decide = gc_item.decide
    row = decide(usual, PerfConfig(gc_interval=200))
    assert (row.status, row.after) == ("applied", "every 200 steps, full every 2,000")
    assert row.before.startswith("automatic, thresholds ")
    assert decide(usual, PerfConfig(gc="freeze")).after == "automatic, long-lived objects frozen"
    assert SimpleNamespace(**{level: decide(usual, PerfConfig(gc=level)).status for level in ("observe", "off")}) == (
        SimpleNamespace(observe="skipped", off="skipped")
    )
