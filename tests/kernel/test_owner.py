"""The base of the owners of process-wide state."""

import contextlib
import itertools
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from weakref import ref

import pytest
from rows import each_row

from perf_callbacks.kernel.process import owner
from perf_callbacks.kernel.process.owner import Owner


class Lamp(Owner[int]):
    """Is as bright as the brightest wish."""

    def __init__(self):
        super().__init__()
        self.bright = 0

    def _arrange(self):
        self.bright = max(self._claims.values(), default=0)

    def wish(self, fit, bright):
        self._claim(fit, bright)
        self.reconcile()


class Fit:
    """A fit."""


class Busy:
    """Holds the lock of an owner on another thread."""

    def __init__(self, owner):
        self._held, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(owner,))

    def _hold(self, owner):
        with owner._lock:
            self._held.set()
            self._go.wait(60)

    def __enter__(self):
        self._thread.start()
        assert self._held.wait(60)

    def __exit__(self, *_):
        self._go.set()
        self._thread.join(60)


def _is_free(lamp):
    with ThreadPoolExecutor(1) as other:
        return other.submit(lamp._lock.acquire, blocking=False).result()


CALLS = {
    "claim": lambda lamp, fit: lamp.wish(fit, 2),
    "release": Lamp.release,
    "let_go": Lamp.let_go,
    "freed": lambda lamp, fit: lamp._freed(ref(fit)),
    "tick": lambda lamp, _fit: lamp.tick(0.0),
}


@each_row("call", CALLS.values())
def test_an_interrupt_at_any_point_of_a_call_leaves_the_lock_free(call):
    for at in itertools.count():
        lamp, fit, points = Lamp(), Fit(), itertools.count()
        lamp.wish(fit, 1)

        def interrupt(frame, event, _argument, points=points, at=at):
            ours = frame.f_code.co_filename == owner.__file__
            if ours and event in {"call", "c_return"} and next(points) == at:  # where Python looks for signals
                raise KeyboardInterrupt

        sys.setprofile(interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            call(lamp, fit)
        sys.setprofile(None)
        assert _is_free(lamp)
        if next(points) <= at:
            assert at > 1
            return


@pytest.mark.parametrize("last", [0, 1])
def test_the_last_of_two_fits_to_end_restores(last):
    lamp, fits = Lamp(), [Fit(), Fit()]
    lamp.wish(fits[0], 1)
    lamp.wish(fits[1], 2)
    lamp.release(fits[1 - last])
    assert lamp.bright == last + 1
    lamp.let_go(fits[last])
    lamp.let_go(fits[last])
    assert lamp.bright == 0


def test_a_fit_that_is_freed_has_no_claim():
    lamp, fit = Lamp(), Fit()
    lamp.wish(fit, 1)
    del fit
    assert lamp.bright == 0


def test_a_fit_that_keeps_its_place_may_change_its_wish():
    lamp, fits = Lamp(), [Fit(), Fit()]
    for fit in (*fits, fits[0]):
        lamp._claim(fit, fits.index(fit))
    assert [reference() for reference in lamp._claims] == fits


@pytest.mark.parametrize("end", ["freed", "let_go"])
def test_a_fit_that_ends_under_the_lock_keeps_its_claim_until_a_tick(end, monkeypatch):
    """Else the owner would ask for no more ticks, and nothing would ever restore the state."""
    monkeypatch.setattr("perf_callbacks.kernel.process.owner.MOMENT_SECONDS", 0.001)
    lamp, fit = Lamp(), Fit()
    lamp.wish(fit, 1)
    with Busy(lamp):
        if end == "let_go":
            lamp.let_go(fit)
        else:
            del fit
        assert (lamp.bright, len(lamp._claims)) == (1, 1)
    assert lamp.tick(0.0) is (end == "let_go")
    assert lamp.bright == (end == "let_go")


def test_a_wish_that_refers_to_its_fit_keeps_the_claim():
    owner = Lamp()
    owner._arrange = lambda: None
    fit = Fit()
    owner.wish(fit, fit)
    del fit
    assert owner.tick(0.0)


@pytest.mark.parametrize("end", ["claim", "release"])
def test_an_interrupted_change_is_finished_by_the_watchdog(end, monkeypatch):
    lamp, fit = Lamp(), Fit()
    if end == "release":
        lamp.wish(fit, 2)
    with monkeypatch.context() as patch:

        def interrupted():
            raise KeyboardInterrupt

        patch.setattr(lamp, "_arrange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            CALLS[end](lamp, fit)
    assert lamp.tick(0.0) is (end == "claim")
    assert lamp.bright == (2 if end == "claim" else 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_thread_that_it_lacks():
    lamp = Lamp()
    with Busy(lamp):
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # no handler of the test runner
            signal.alarm(5)
            lamp.release(Fit())
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert status == 0
