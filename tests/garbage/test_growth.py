"""Garbage that grows too fast on one rank: what it does by itself, and what it asks all ranks for."""

import pytest
from collector import FakeGc, put

from perf_callbacks import PerfConfig
from perf_callbacks.garbage import growth
from perf_callbacks.garbage.item import FULL, YOUNG, ScheduledCollection
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.fit.item import Fit

MB = 1_000_000


class Littered(FakeGc):
    """A collector that frees most of what there is."""

    freed = 500_000

    def collect(self, generation=2):
        super().collect(generation)
        return self.freed


@pytest.fixture
def fake(monkeypatch):
    return put(monkeypatch, Littered())


@pytest.fixture
def begin():
    begun = []

    def one(*, memory=dict, **config):
        fit = Fit(config=PerfConfig(**config), environment=environment.read(), step=0, memory=memory)
        begun.append(ScheduledCollection(fit))
        return begun[-1]

    yield one
    for upkeep in begun:
        upkeep.closed()


def go(upkeep, fake, until, *, first=1, danger=()):
    """Which collections came at which step."""
    found = []
    for step in range(first, until + 1):
        fake.collected.clear()
        fake.young = 600_000 if step in danger else 10
        if step >= upkeep.due:
            upkeep.step_ended(step)
        found += [(step, generation) for generation in fake.collected]
    return found


@pytest.mark.parametrize(("freed", "asked"), [(600_000, 50), (300_001, 50), (300_000, 100), (0, 100)])
def test_a_rank_with_much_garbage_asks_for_more_collections(fake, begin, freed, asked):
    """Where most of it is still in use, to collect more often helps nobody."""
    fake.freed = freed
    upkeep = begin(gc_interval=100)
    assert upkeep.proposals == {"gc_interval": 100}
    assert (18, YOUNG) in go(upkeep, fake, 30, danger=range(13, 21))
    assert upkeep.proposals == {"gc_interval": asked}
    (row,) = upkeep.news()
    assert row.why.endswith("; requested of all ranks: collect every 50 steps" if asked == 50 else "only on this rank")


@pytest.mark.parametrize(("left", "asked"), [(8000, 50), (8499, 50), (8500, 100), (9000, 100)])
def test_a_rank_that_freed_half_of_its_growth_collects_more_often(fake, begin, monkeypatch, left, asked):
    """However many objects were garbage: what counts is how much they held."""
    memory = {"host": 4000 * MB, "device": 8000 * MB}
    upkeep = begin(gc_interval=100, memory=lambda: {**memory})
    go(upkeep, fake, 40)
    memory["device"] = 9000 * MB
    monkeypatch.setattr(fake, "collect", lambda generation=FULL: memory.update(device=left * MB) or 1)
    go(upkeep, fake, 60, first=41)
    assert upkeep.proposals == {"gc_interval": asked}
    (row,) = upkeep.news()
    assert row.why.startswith("device memory 9,000 MB after step ")
    assert ("all ranks" in row.why) == (asked == 50)


def test_memory_that_is_told_by_its_peak_never_asks_for_anything(fake, begin):
    """It does not fall, whatever was garbage."""
    memory = {"host": 4000 * MB}
    upkeep = begin(gc_interval=100, memory=lambda: {**memory})
    for step in range(1, 200):
        memory["host"] += 50 * MB
        go(upkeep, fake, step, first=step)
        assert upkeep.proposals == {"gc_interval": 100}
    (row,) = upkeep.news()
    assert row.why.endswith("collected at once, only on this rank")


def test_a_rank_asks_for_no_more_until_the_agreement(fake, begin):
    upkeep = begin(gc_interval=100)
    go(upkeep, fake, 90, danger=range(13, 90))
    assert upkeep.proposals == {"gc_interval": 50}
    upkeep.adopted(upkeep.proposals, 95)
    go(upkeep, fake, 140, first=91, danger=range(101, 140))
    assert upkeep.proposals == {"gc_interval": 25}


@pytest.mark.parametrize(("configured", "least"), [(100, 10), (15, 10), (10, 10), (7, 7), (1, 1)])
def test_a_rank_asks_for_nothing_below_ten_steps_or_its_setting(fake, begin, configured, least):
    upkeep = begin(gc_interval=configured)
    for step in range(1, 400):
        go(upkeep, fake, step, first=step, danger=(step,))
        upkeep.adopted(upkeep.proposals, step)
        assert least <= upkeep.proposals["gc_interval"] <= configured
    assert upkeep.proposals == {"gc_interval": least}


def test_an_agreed_interval_holds_from_its_step_at_common_multiples(fake, begin):
    upkeep = begin(gc_interval=100)
    go(upkeep, fake, 110)
    upkeep.adopted({"gc_interval": 50}, 230)
    found = go(upkeep, fake, 1000, first=111)
    assert found == [
        (200, YOUNG),
        *[(step, YOUNG if step % 500 else FULL) for step in range(250, 1001, 50)],
    ]
    assert [(row.item, row.status, row.why) for row in upkeep.news()] == [
        ("gc", "applied", "every 50 steps from step 230 on: a rank requested it")
    ]


@pytest.mark.parametrize("asked", [0, -1, 50, 75, 100, 1000])
def test_an_interval_that_is_no_shorter_changes_nothing(fake, begin, asked):
    """No rank collects less often because of what another one asks for."""
    upkeep = begin(gc_interval=100)
    go(upkeep, fake, 110)
    upkeep.adopted({"gc_interval": 50}, 130)
    upkeep.adopted({"gc_interval": asked}, 120)
    assert go(upkeep, fake, 200, first=111) == [(150, YOUNG), (200, YOUNG)]
    upkeep.adopted({"gc_interval": asked}, 210)
    assert go(upkeep, fake, 300, first=201) == [(250, YOUNG), (300, YOUNG)]
    assert [row.why for row in upkeep.news()] == ["every 50 steps from step 130 on: a rank requested it"]


def test_a_step_that_is_due_by_the_old_interval_still_counts(fake, begin):
    upkeep = begin(gc_interval=100)
    go(upkeep, fake, 110)
    upkeep.adopted({"gc_interval": 75}, 200)
    assert go(upkeep, fake, 310, first=111) == [(200, YOUNG), (225, YOUNG), (300, YOUNG)]


def test_an_agreement_that_is_repeated_is_neither_put_off_nor_said_again(fake, begin):
    upkeep = begin(gc_interval=100)
    go(upkeep, fake, 110)
    for step in range(111, 400):
        upkeep.adopted({"gc_interval": 50}, step + 20)
        go(upkeep, fake, step, first=step)
    assert [row.why for row in upkeep.news()] == ["every 50 steps from step 131 on: a rank requested it"]


def test_an_agreement_stands_without_a_window_that_repeats_it(fake, begin):
    """A rank may have given it up meanwhile, or be about to."""
    upkeep = begin(gc_interval=100)
    go(upkeep, fake, 110)
    upkeep.adopted({"gc_interval": 50}, 130)
    upkeep.adopted({}, 135)
    go(upkeep, fake, 140, first=111)
    upkeep.adopted({"profile": 1}, 145)
    assert go(upkeep, fake, 250, first=141) == [(150, YOUNG), (200, YOUNG), (250, YOUNG)]
    assert len(upkeep.news()) == 1


def test_an_agreement_after_the_end_changes_nothing(fake, begin):
    upkeep = begin(gc_interval=100)
    go(upkeep, fake, 110)
    upkeep.closed()
    upkeep.adopted({"gc_interval": 50}, 120)
    assert go(upkeep, fake, 300, first=111) == []
    assert upkeep.news() == []


def test_a_fit_with_automatic_collection_has_no_interval(fake, begin):
    upkeep = begin(gc="freeze")
    go(upkeep, fake, 110)
    upkeep.adopted({"gc_interval": 50}, 120)
    assert go(upkeep, fake, 300, first=111) == []


@pytest.fixture
def looks(begin, monkeypatch):
    """The steps after which it is looked, if each step takes as long as told."""
    monkeypatch.setattr(growth, "LOOK_SECONDS", 0.25)

    def at(steps, seconds):
        now, looked = 0.0, []
        monkeypatch.setattr(growth, "perf_counter", lambda: now)
        upkeep = begin(gc_interval=100, memory=lambda: looked.append(step) or {})
        for step in range(1, steps + 1):
            now += seconds(step)
            if step >= upkeep.due:
                upkeep.step_ended(step)
        assert looked.pop(0) == 2  # what is normal
        return looked

    return at


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1 / 1024, [3, 4, 6, 10, 18, 34, 66, 100, 198, *range(200, 901, 100)]),  # with each collection
        (1 / 128, [3, 4, 6, 10, 18, 34, 66, 98, 100, 132, 164, 196, 200]),
        (1.0, [3, 4, 6, 10, *range(18, 99, 10), 100, *range(110, 201, 10)]),
    ],
)
def test_short_steps_are_looked_at_more_rarely(fake, looks, seconds, expected):
    assert looks(expected[-1], lambda _: seconds) == expected


def test_looks_become_frequent_again_when_steps_become_longer(fake, looks):
    found = looks(330, lambda step: 1 / 1024 if step <= 120 else 1.0)
    assert [step for step in found if step > 100] == [198, *range(200, 331, 10)]
