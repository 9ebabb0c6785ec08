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
    window = CountWindow()
    window.open()
    return window


def sweeping():
    """A later count on the same thread."""
    opened().close()


def test_an_interrupt_while_opening_leaves_nothing_after_closing():
    window = CountWindow()
    points = interruptions(window.open)
    window.close()
    assert points > 10
    before = state()
    for number in range(points):
        window = CountWindow()
        with suppress(KeyboardInterrupt):
            interrupted_at(number, window.open)
        window.close()
        assert state() == before, number


def test_an_interrupt_while_opening_leaves_nothing_after_freeing():
    window = CountWindow()
    points = interruptions(window.open)
    window.close()
    before = state()
    for number in range(points):
        window = CountWindow()
        with suppress(KeyboardInterrupt):
            interrupted_at(number, window.open)
        del window
        after = state()
        assert after | {"modes": []} == before, number
        assert all(mode.inert for mode in after["modes"])
        sweeping()
        assert state() == before, number


def test_an_interrupt_while_closing_leaves_nothing_after_another_close():
    points = interruptions(opened().close)
    assert points > 10
    before = state()
    for number in range(points):
        window = opened()
        with suppress(KeyboardInterrupt):
            interrupted_at(number, window.close)
        window.close()
        assert state() == before, number


def test_an_interrupt_while_closing_leaves_nothing_of_a_ticking_window():
    points = interruptions(opened().close)
    before = state()
    for number in range(points):
        window = CountWindow(patience_seconds=5.0)
        window.open()
        with suppress(KeyboardInterrupt):
            interrupted_at(number, window.close)
        other = threading.Thread(target=lambda: [window.tick(now) for now in (0.0, 6.0, 7.0)])  # noqa: B023 joined here
        other.start()
        other.join()
        after = state()
        assert after | {"modes": []} == before, number
        assert all(mode.inert for mode in after["modes"])
        sweeping()
        assert state() == before, number


def step():
    squared(layer()(inputs())).backward()


def test_a_count_in_which_nothing_happens_for_long_is_given_up():
    before, window = state(), CountWindow(patience_seconds=5.0)
    window.open()
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
    window = CountWindow(patience_seconds=5.0)
    window.open()
    for now in range(60):
        if not now % 4:
            step()
        assert window.tick(float(now))
    window.close()
    assert window.counter.work().model_flops


def test_a_window_that_is_left_for_an_evaluation_waits_for_its_end():
    window = CountWindow(patience_seconds=5.0)
    window.open()
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
