"""An interrupt at any point of opening or closing a count, and a count that nobody closes: nothing is left for long."""

import gc
import sys
import threading
from contextlib import suppress

import pytest
import torch
from counted import left_behind
from flops.products import inputs, layer, squared

from perf_callbacks.flops.counting.count_window import CountWindow


def interrupted_at(number, act):
    """Do this, with an interrupt after the n-th call within it: where Python itself looks for signals."""
    seen = 0
    collecting = gc.isenabled()
    gc.disable()  # what is freed in between is freed with an interrupt of its own

    def profile(_frame, event, _argument):
        nonlocal seen
        if event in {"call", "c_return"}:
            seen += 1
            if seen == number + 1:
                sys.setprofile(None)
                raise KeyboardInterrupt

    try:
        sys.setprofile(profile)
        act()
    finally:
        sys.setprofile(None)
        if collecting:
            gc.enable()
    return seen


def interruptions(act):
    """How many such points there are, besides those of the test itself."""
    return interrupted_at(1 << 30, act) - 1


def state():
    return {**left_behind(), "flags": [torch.utils._python_dispatch.is_in_torch_dispatch_mode()]}


@pytest.fixture(autouse=True)
def _compiler():
    torch.compiler.set_stance("default")  # it is there, so that there is a stance


def opened():
    window = CountWindow(patience_seconds=5.0)
    window.open()
    return window


def closed(window):
    window.close()


def ticked(window):
    """Another thread gives it up, for which nothing happened for long."""
    other = threading.Thread(target=lambda: [window.tick(now) for now in (0.0, 6.0, 7.0)])
    other.start()
    other.join()


def freed(_window):
    pass


def new():
    return CountWindow(patience_seconds=5.0)


@pytest.mark.parametrize("act", ["open", "close"])
@pytest.mark.parametrize("end", [closed, ticked, freed])
def test_an_interrupt_leaves_nothing_after_the_end_of_its_window(act, end):
    """A later count on the same thread takes off what could not be taken off before, and is silent until then."""
    make = new if act == "open" else opened
    window = make()
    points = interruptions(getattr(window, act))
    window.close()
    assert points > 10
    before = state()
    for number in range(points):
        window = make()
        with suppress(KeyboardInterrupt):
            interrupted_at(number, getattr(window, act))
        end(window)
        del window
        after = state()
        assert after | ({} if end is closed else {"modes": []}) == before, number
        assert all(mode.inert for mode in after["modes"])
        opened().close()
        assert state() == before, number


def step():
    squared(layer()(inputs())).backward()


def test_a_count_in_which_nothing_happens_for_long_is_given_up():
    before, window = state(), opened()
    step()
    assert all(window.tick(float(now)) for now in range(5))
    assert state() != before
    assert not all(window.tick(float(now)) for now in range(5, 10))
    window.close()
    assert state() == before
    window.open()
    assert state() == before, "it does not come back"
    assert window.counter.work().by_phase == {}, "half a step tells nothing"


def test_a_count_in_which_something_happens_goes_on_however_long_it_takes():
    window = opened()
    for now in range(60):
        if not now % 4:
            step()
        assert window.tick(float(now))
    window.close()
    assert window.counter.work().model_flops


def test_a_window_that_is_left_for_an_evaluation_waits_for_its_end():
    window = opened()
    assert window.tick(0.0)
    window.close()
    assert window.tick(100.0)
    window.open()
    assert all(window.tick(now) for now in (200.0, 204.0))
    window.close()


def test_a_count_whose_thread_has_ended_is_given_up():
    before, windows = state(), []
    thread = threading.Thread(target=lambda: windows.append(opened()))
    thread.start()
    thread.join()
    assert not windows[0].tick(0.0)
    assert state() == before
