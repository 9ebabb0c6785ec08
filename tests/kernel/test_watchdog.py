"""Whoever is watched is ticked for, weakly, until it has had enough."""

import gc
import os
import threading
import weakref

import pytest

from perf_callbacks.kernel.process import watchdog
from perf_callbacks.kernel.process.watchdog import Watchdog


class Ticked:
    def __init__(self, ticks=None):
        self.seen, self._ticks = [], ticks

    def tick(self, now):
        self.seen.append(now)
        return self._ticks is None or len(self.seen) < self._ticks


def thread_of(dog):
    return next(thread for thread in threading.enumerate() if thread.native_id == dog.thread_id)


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def dog(now):
    return Watchdog(lambda: now[0], threaded=False)


def test_everything_watched_is_ticked_for_until_it_needs_no_more(dog, now):
    long, short = Ticked(), Ticked(ticks=2)
    for ticked in (long, short, long):
        dog.watch(ticked)
    for second in range(4):
        now[0] = float(second)
        assert dog.tick()
    assert (long.seen, short.seen) == ([0.0, 1.0, 2.0, 3.0], [0.0, 1.0])


def test_being_watched_keeps_nothing_alive(dog):
    watched = Ticked()
    gone = weakref.ref(watched)
    dog.watch(watched)
    assert dog.tick()
    del watched
    assert gone() is None
    assert not dog.tick()


def test_a_tick_that_fails_is_the_last_and_the_others_go_on(dog):
    class Failing(Ticked):
        def tick(self, now):
            super().tick(now)
            raise ValueError("no")

    failing, other = Failing(), Ticked()
    dog.watch(failing)
    dog.watch(other)
    assert dog.tick()
    assert dog.tick()
    assert (len(failing.seen), len(other.seen)) == (1, 2)


def test_the_thread_ticks_by_itself_and_ends_when_nothing_is_left(monkeypatch):
    monkeypatch.setattr(watchdog, "PERIOD_SECONDS", 0.001)
    ticked, threads = threading.Event(), []

    class Once:
        def tick(self, _now):
            threads.append(threading.current_thread())
            ticked.set()
            return False

    dog, once = Watchdog(), Once()
    for _ in range(2):  # it begins anew
        dog.watch(once)
        assert ticked.wait(60)
        threads[-1].join(60)
        assert not threads[-1].is_alive()
        ticked.clear()
    assert threads[0] is not threads[1]


def test_without_threads_nothing_is_ticked_for_until_a_later_call(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    dog, watched = Watchdog(), Ticked()
    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "start", refuse)
        dog.watch(watched)
    assert dog.thread_id is None
    dog.watch(watched)
    assert thread_of(dog).is_alive()
    dog.stop()


def test_the_thread_ends_as_soon_as_the_last_is_said_to_have_ended(monkeypatch):
    monkeypatch.setattr(watchdog, "PERIOD_SECONDS", 3600.0)
    dog, going = Watchdog(), [True]
    dog.hurry()

    class Fit:
        def tick(self, _now):
            return going[0]

    fit = Fit()
    dog.watch(fit)
    thread = thread_of(dog)
    dog.hurry()
    going[0] = False
    dog.hurry()
    thread.join(60)
    assert not thread.is_alive()
    dog.stop()


def test_the_thread_ends_with_the_last_fit_even_within_a_tick(monkeypatch):
    monkeypatch.setattr(watchdog, "PERIOD_SECONDS", 3600.0)
    monkeypatch.setattr(watchdog, "CLOSE_SECONDS", 60.0)
    dog, going, begun = Watchdog(), [True], threading.Event()
    waiting = [threading.Event(), threading.Event()]  # each tick lasts until the end of the fit waits for it
    ticks, waits = iter(waiting), iter(waiting)

    class Fit:
        def tick(self, _now):
            answer = going[0]
            begun.set()
            next(ticks).wait(60)
            return answer

    class Ticks(threading.Event):
        def wait(self, timeout=None):
            next(waits).set()
            return super().wait(timeout)

    fit = Fit()
    dog.watch(fit)
    dog._ticked = Ticks()
    thread = thread_of(dog)
    dog._wake.set()
    assert begun.wait(60)
    going[0] = False
    dog.hurry()
    alive = thread.is_alive()
    waiting[1].set()
    dog.stop()
    assert not alive


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked on this system")
def test_a_forked_child_watches_nothing_and_may_begin_anew():
    dog, watched = Watchdog(), Ticked()
    dog.watch(watched)
    child = os.fork()
    if child == 0:
        alone = dog.thread_id is None and not dog.tick()
        dog.watch(watched)
        os._exit(0 if alone and thread_of(dog).is_alive() else 1)
    assert os.waitpid(child, 0)[1] == 0
    dog.stop()
    gc.collect(0)


def test_a_request_in_the_midst_of_the_last_tick_is_heard(dog):
    class Asking(Ticked):
        def tick(self, now):
            dog.watch(self)  # as another thread may, once the answer is known
            return super().tick(now)

    asking = Asking(ticks=0)
    dog.watch(asking)
    assert dog.tick()
    assert dog.tick()
    assert len(asking.seen) == 2
