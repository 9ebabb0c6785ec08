"""Collections, observed: each one, by whom and where."""

import functools
import gc
import os
import signal
import threading

import pytest
from late_signals import PreemptError, Trips

from perf_callbacks.kernel.process.collector import COLLECTOR, Lease
from perf_callbacks.kernel.process.gc_observer import GcObserver


class Pauses(list):
    def __call__(self, pause):
        self.append((pause.generation, pause.automatic, pause.here))
        self.last = (pause.start, pause.seconds, pause.collected)
        self.made = pause.made


@pytest.fixture
def pauses():
    return Pauses()


@pytest.fixture
def observer(pauses):
    """Installed, in a process that collects by itself only where a test makes it."""
    found, enabled = gc.get_threshold(), gc.isenabled()
    gc.set_threshold(1_000_000)
    gc.enable()
    gc.collect()
    observer = GcObserver(pauses)
    observer.install()
    yield observer
    observer.remove()
    gc.set_threshold(*found)
    (gc.enable if enabled else gc.disable)()


@pytest.mark.usefixtures("observer")
@pytest.mark.parametrize("generation", [0, 1, 2])
def test_a_requested_collection_is_told_by_generation(pauses, generation):
    gc.collect(generation)
    assert pauses == [(generation, False, True)]


def test_the_line_that_asks_for_a_collection_is_named(observer):
    for _ in range(2):
        gc.collect()
    (line,) = observer.calls
    assert line.startswith("test_gc_observer.py:")
    assert line.endswith(" `test_the_line_that_asks_for_a_collection_is_named`")
    assert observer.calls[line] > 0


@pytest.mark.usefixtures("observer")
def test_a_collection_of_a_fit_counts_the_objects_since_the_last(pauses):
    kept = [[] for _ in range(5000)]
    Lease(COLLECTOR).collect_now(1)
    assert 5000 <= pauses.made < 6000
    Lease(COLLECTOR).collect_now(1)
    assert pauses.made < 1000
    assert len(kept) == 5000


def test_an_unrequested_collection_is_automatic(pauses, observer):
    gc.set_threshold(50)
    held = [[] for _ in range(1000)]
    gc.set_threshold(1_000_000)
    assert observer.calls == {}
    assert len(pauses) > 5
    assert {(automatic, here) for _, automatic, here in pauses} == {(True, True)}
    assert len(held) == 1000


@pytest.mark.usefixtures("observer")
def test_a_requested_collection_is_not_automatic(pauses):
    gc.disable()
    held = [[] for _ in range(1000)]
    gc.set_threshold(50)
    gc.collect(0)
    gc.set_threshold(1_000_000)
    assert (pauses, len(held)) == ([(0, False, True)], 1000)


@pytest.mark.usefixtures("observer")
def test_a_collection_in_another_thread_is_told_apart(pauses):
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    assert pauses == [(2, False, False)]


@pytest.mark.usefixtures("observer")
def test_collected_objects_are_counted(pauses):
    gc.collect()
    for _ in range(10):
        cycle = []
        cycle.append(cycle)
    del cycle
    gc.collect()
    assert pauses.last[2] == 10


def test_the_length_of_a_pause_is_that_of_its_clock(pauses):
    readings = iter([5.0, 5.75])
    observer = GcObserver(pauses, clock=lambda: next(readings))
    observer.on_gc("start", {"generation": 1})
    observer.on_gc("stop", {"generation": 1, "collected": 3})
    assert pauses.last == (5.0, 0.75, 3)


def test_the_end_of_a_collection_without_its_begin_is_nothing(pauses):
    GcObserver(pauses).on_gc("stop", {"generation": 1, "collected": 3})
    assert pauses == []


def test_installing_twice_is_once_and_removing_leaves_all_as_found(pauses):
    found = list(gc.callbacks)
    gc.callbacks.append(print)
    observer, other = GcObserver(pauses), GcObserver(pauses)
    for each in (observer, other, observer):
        each.install()
    assert gc.callbacks == [*found, print, observer.on_gc, other.on_gc]
    for each in (observer, observer, other):
        each.remove()
    assert gc.callbacks == [*found, print]
    gc.callbacks.remove(print)


def test_a_signal_during_a_collection_of_ours_is_not_lost(pauses, observer):
    def handle(_signum, _frame):
        raise PreemptError

    before = signal.signal(signal.SIGUSR1, handle)
    lease, trip = Lease(COLLECTOR), functools.partial(getattr, Trips())
    found = [*gc.callbacks]
    # Callbacks of others, as Hypothesis has one, would get the signal in place of ours.
    gc.callbacks[:] = [trip, observer.on_gc]
    try:
        with pytest.raises(PreemptError):
            lease.collect(2)
        assert gc.callbacks == [trip, observer.on_gc]
    finally:
        gc.callbacks[:] = found
        signal.signal(signal.SIGUSR1, before)
    assert pauses == []
    lease.collect_now(1, "scheduled")
    assert (pauses, pauses.last[1] > 0) == ([(1, False, True)], True)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked on this system")
@pytest.mark.usefixtures("observer")
def test_a_forked_child_tells_nothing(pauses):
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(len(pauses))
    assert os.waitpid(child, 0)[1] == 0
