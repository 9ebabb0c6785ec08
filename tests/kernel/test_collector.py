"""The collector, shared by fits that overlap, and put back exactly as it was found."""

import gc
import os
import threading
import timeit

import pytest
from collector import FakeGc, put

from perf_callbacks.kernel.process import collector
from perf_callbacks.kernel.process.collector import FULL, Collector, Lease
from perf_callbacks.kernel.process.watchdog import WATCHDOG


@pytest.fixture
def fake(monkeypatch):
    return put(monkeypatch, FakeGc())


@pytest.fixture
def ours(fake):
    return fake.owner


class Going:
    """A fit whose steps go on, as far as anybody asks."""

    def __init__(self, longest=0.1):
        self.steps, self.longest = 0, longest

    def __call__(self):
        return self.steps, self.longest


def hold(ours, progress=None):
    lease = Lease(ours, progress)
    assert lease.turn_off()
    lease.freeze()
    return lease


def test_a_lease_that_is_let_go_leaves_the_collector_as_found(fake, ours):
    found = fake.state
    lease = hold(ours)
    assert fake.state == (False, True, (0, 10, 10), [])
    assert (ours.automatic, ours.frozen, ours.thresholds) == (True, 0, (700, 10, 10))
    lease.let_go()
    lease.let_go()
    assert fake.state == found


@pytest.mark.parametrize("last", [0, 1])
def test_the_last_of_two_fits_to_end_restores(fake, ours, last):
    found = fake.state
    leases = [hold(ours), hold(ours)]
    leases[1 - last].let_go()
    assert fake.state[:2] == (False, True)
    leases[last].let_go()
    assert fake.state == found


def test_collection_that_the_program_turned_off_stays_off(fake, ours):
    fake.disable()
    lease = Lease(ours)
    assert not lease.turn_off()
    lease.turn_on()
    lease.let_go()
    assert not fake.enabled


@pytest.mark.parametrize("threshold", [(700, 10, 10), (0, 10, 10)])
def test_changes_of_the_program_in_mid_fit_stay(fake, ours, threshold):
    lease = hold(ours)
    fake.disable()
    fake.set_threshold(*threshold)
    lease.let_go()
    assert (fake.enabled, fake.threshold) == (False, (700, 10, 10))


def test_thresholds_that_were_set_in_mid_fit_stay_and_are_noticed(fake, ours):
    lease = hold(ours)
    assert not lease.overruled
    fake.set_threshold(50_000, 20, 20)
    assert lease.overruled
    lease.let_go()
    assert fake.threshold == (50_000, 20, 20)


def test_code_that_disables_collection_for_a_moment_changes_nothing():
    """As `timeit` does, in the middle of a fit."""
    lease = Lease(Collector())
    assert lease.turn_off()
    try:
        timeit.timeit("pass", number=1)
        assert gc.isenabled()
        assert gc.get_threshold()[0] == 0
    finally:
        lease.let_go()
    assert gc.get_threshold()[0] != 0


def test_objects_that_the_program_froze_stay_frozen(fake, ours):
    fake.freeze()
    lease = Lease(ours)
    lease.freeze()
    fake.alive = 10
    lease.let_go()
    assert fake.frozen == 5000


def test_objects_that_the_interpreter_froze_are_no_plan_of_the_program(fake, ours):
    fake.frozen = 400
    lease = Lease(ours)
    lease.freeze()
    assert fake.frozen == 5400
    lease.let_go()
    assert fake.frozen == 0


def test_objects_that_the_program_freezes_on_top_stay_frozen(fake, ours):
    lease = hold(ours)
    fake.alive = 3
    fake.freeze()
    lease.let_go()
    assert fake.frozen == 5003


@pytest.mark.usefixtures("thawed")
def test_the_real_collector_tells_a_freeze_on_top_from_none():
    for on_top in (False, True):
        lease = Lease(Collector())
        lease.freeze()
        assert gc.get_freeze_count() > collector.OWN_FROZEN
        if on_top:
            gc.freeze()
        lease.let_go()
        assert (gc.get_freeze_count() > collector.OWN_FROZEN) is on_top
        gc.unfreeze()


def test_a_collection_of_a_fit_counts_for_the_others(fake, ours):
    one, other = hold(ours), hold(ours)
    for _ in range(5):
        one.collect(FULL)
        other.collect(FULL)
    assert fake.collected == [FULL] * 5
    one.collect(1)
    other.collect(1)
    assert fake.collected[5:] == [1]


def test_collections_of_earlier_fits_count_for_no_later_fit(fake, ours):
    earlier = hold(ours)
    earlier.collect(FULL)
    earlier.let_go()
    Lease(ours).collect(FULL)  # it has turned nothing off yet
    assert fake.collected == [FULL, FULL]


def test_a_fit_within_a_step_of_another_keeps_its_own_schedule(fake, ours):
    outer, inner = hold(ours), hold(ours)
    for _ in range(3):
        inner.collect(1)
    outer.collect(1)
    assert fake.collected == [1, 1, 1]


def test_a_collection_says_whose_it_is(fake, ours):
    seen = []
    fake.collect = lambda _generation: seen.append(ours.reason) or 0
    lease = hold(ours)
    lease.collect(FULL, "startup")
    lease.collect(1)
    assert (seen, ours.reason) == (["startup", "schedule"], None)


def test_a_fit_without_further_steps_gives_the_collector_back(fake, ours):
    found, going = fake.state, Going(longest=0.1)
    lease = hold(ours, going)
    for second in range(3):
        going.steps += 1
        assert ours.tick(float(second))
    assert ours.tick(6.9)
    assert fake.state[:2] == (False, True)
    assert not ours.tick(7.0)
    assert (fake.state, fake.collected, lease.abandoned) == (found, [FULL], True)
    assert lease.turn_off()
    assert (fake.automatic, lease.abandoned) == (False, False)
    lease.let_go()
    assert fake.state == found


@pytest.mark.parametrize(("longest", "aside", "patience"), [(0.4, False, 8.0), (30.0, False, 600.0), (0.1, True, 30.0)])
def test_longer_steps_and_evaluations_are_waited_for_longer(ours, longest, aside, patience):
    lease = hold(ours, Going(longest))
    lease.aside = aside
    assert ours.tick(0.0)
    assert ours.tick(patience - 0.1)
    assert not ours.tick(patience)


def test_a_freed_fit_is_abandoned_and_the_others_go_on_frozen(fake, ours):
    hold(ours, lambda: None)
    going = hold(ours)
    assert ours.tick(0.0)
    assert (fake.state[:2], fake.collected) == ((False, True), [FULL])
    going.let_go()
    assert fake.state[:2] == (True, False)


def test_a_fit_that_holds_the_collector_and_stops_is_collected_once(fake, ours):
    hold(ours, Going())
    for second in range(30):
        ours.tick(float(second))
    assert fake.collected == [FULL]


@pytest.mark.parametrize("function", ["set_threshold", "freeze", "unfreeze", "get_objects"])
@pytest.mark.parametrize("after", [False, True])
def test_the_watchdog_mends_the_state_after_an_interrupt(fake, ours, monkeypatch, function, after):
    found, going = fake.state, Going()
    real = getattr(fake, function)

    def interrupted(*arguments):
        monkeypatch.setattr(fake, function, real)
        if after:
            real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(fake, function, interrupted)
    lease = Lease(ours, going)
    with pytest.raises(KeyboardInterrupt):
        _go_through(lease)
    for second in range(7):
        ours.tick(float(second))
    assert fake.state == found


def _go_through(lease):
    lease.turn_off()
    lease.freeze()
    lease.let_go()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked on this system")
def test_a_forked_child_collects_by_itself_and_is_part_of_no_fit():
    ours = Collector()
    lease = Lease(ours)
    assert lease.turn_off()
    try:
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.get_threshold()[0] and not ours.held and Lease(ours).turn_off() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert gc.get_threshold()[0] == 0
    finally:
        lease.let_go()
    assert gc.get_threshold()[0] != 0


def test_the_watchdog_is_not_asked_with_the_lock_held(fake, ours, monkeypatch):
    other, free = Lease(ours), []

    def watch(_owner):  # a collection in the watchdog's lock, on another thread, may free a fit
        freeing = threading.Thread(target=other.let_go, daemon=True)
        freeing.start()
        freeing.join(60)
        free.append(not freeing.is_alive())

    monkeypatch.setattr(WATCHDOG, "watch", watch)
    hold(ours).let_go()
    assert free == [True]
