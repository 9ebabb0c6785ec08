"""A stretch of a run that is counted, entered and left in its midst: it leaves everything as it found it."""

import gc
import threading
import warnings
import weakref
from contextlib import suppress

import pytest
import torch
from counted import left_behind
from flops.products import OUT, PRODUCT, ROWS, WIDE, inputs, layer, squared
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from perf_callbacks.flops.counting.count_window import CountWindow


class Theirs(TorchDispatchMode):
    """Somebody else's mode: it counts calls."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def step():
    squared(layer()(inputs())).backward()


def counted(window):
    return window.counter.work().by_phase


def test_work_while_a_window_is_open_is_counted_and_nothing_else():
    """It may be left and entered again; to open or close it twice is to do it once."""
    step()
    before, window = left_behind(), CountWindow()
    window.close()
    for _ in range(3):
        window.open()
        window.open()
        step()
        window.close()
        window.close()
        step()
    assert counted(window) == {"forward": 3 * PRODUCT, "backward": 3 * PRODUCT}
    assert not window.counter.interrupted
    assert left_behind() == before


def test_decomposing_in_inference_mode_does_not_hide_the_window_at_its_end():
    before, window, teacher = left_behind(), CountWindow(), torch.nn.Sequential(layer(), torch.nn.LayerNorm(OUT))
    window.open()
    with torch.inference_mode():
        teacher(inputs())
    window.close()
    assert counted(window) == {"forward": PRODUCT}
    assert not window.left_behind
    assert left_behind() == before


@pytest.mark.parametrize("within", [False, True])
def test_a_window_closed_in_inference_mode_stays_silent_until_reopened(within):
    """Torch has the thread's dispatch keys back when the mode ends: without a mode for them, `torch.ones` fails."""
    before, window = left_behind(), CountWindow()
    window.open()
    step()
    with torch.inference_mode():
        window.close()
        layer()(inputs())
        if within:
            window.open()
    torch.ones(2)
    window.open()
    step()
    window.close()
    torch.ones(2)
    assert counted(window) == {"forward": 2 * PRODUCT, "backward": 2 * PRODUCT}
    assert left_behind() == before


def test_a_window_set_aside_returns_with_the_next_call_of_a_module():
    before, window = left_behind(), CountWindow()
    window.open()
    step()
    window.step_aside()
    assert _get_current_dispatch_mode_stack() == []
    step()
    window.close()
    assert counted(window) == {"forward": 2 * PRODUCT, "backward": 2 * PRODUCT}
    assert left_behind() == before


@pytest.mark.parametrize("within", [torch.inference_mode, Theirs])
def test_a_window_that_can_not_come_back_counts_nothing(within):
    before, window = left_behind(), CountWindow(patience_seconds=5.0)
    window.open()
    step()
    window.step_aside()
    with within():
        layer()(inputs())
    assert window.counter.lost
    step()
    assert [window.tick(now) for now in (0.0, 4.0, 6.0)] == [True, True, False]
    window.close()
    assert counted(window) == {}
    assert left_behind() == before


@pytest.mark.parametrize("again", [False, True])
def test_a_window_that_stays_aside_counts_nothing_of_a_step_known_in_part(again):
    before, window = left_behind(), CountWindow()
    window.open()
    loss = squared(layer()(inputs()))
    window.step_aside()
    loss.backward()
    window.close()
    if again:  # as after an evaluation
        window.open()
        step()
        window.close()
    assert counted(window) == {}
    assert left_behind() == before


def test_a_window_set_aside_by_another_thread_stays():
    window = CountWindow()
    window.open()
    other = threading.Thread(target=window.step_aside)
    other.start()
    other.join()
    assert _get_current_dispatch_mode_stack() == [window.counter]
    window.close()


def test_a_count_shows_no_warning_of_the_program_again():
    def warn():
        warnings.warn("of theirs", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(2):
            warn()
            window = CountWindow()
            window.open()
            window.close()
    assert len(shown) == 1


def test_a_mode_below_stays_below():
    window, theirs = CountWindow(), Theirs()
    with theirs:
        window.open()
        step()
        window.close()
        assert _get_current_dispatch_mode_stack() == [theirs]
    assert theirs.calls > 0
    assert counted(window) == {"forward": PRODUCT, "backward": PRODUCT}


def test_a_window_under_a_foreign_mode_is_silent_until_it_can_leave():
    before, window, theirs = left_behind(), CountWindow(), Theirs()
    window.open()
    theirs.__enter__()
    step()
    window.close()
    assert (window.left_behind, window.counter.inert) == (True, True)
    work, calls = window.counter.work(), theirs.calls
    step()
    assert window.counter.work() == work
    assert theirs.calls > calls, "theirs is as it was"
    window.open()
    assert len(_get_current_dispatch_mode_stack()) == 2, "it does not come back"
    theirs.__exit__(None, None, None)
    window.close()
    assert not window.left_behind
    assert left_behind() == before


def test_a_window_closed_by_another_thread_is_silent_until_its_own_does():
    before, window = left_behind(), CountWindow()
    window.open()
    other = threading.Thread(target=window.close)
    other.start()
    other.join()
    assert window.left_behind
    step()
    assert counted(window) == {}
    window.close()
    assert left_behind() == before


@pytest.mark.parametrize("error", [RuntimeError("of ours"), KeyboardInterrupt()])
def test_a_counter_that_can_not_be_entered_changes_nothing(monkeypatch, error):

    before, window = left_behind(), CountWindow()

    def fail(_):
        raise error

    monkeypatch.setattr(type(window.counter), "enter_stack", fail)
    with pytest.raises(type(error)):
        window.open()
    window.close()
    assert left_behind() == before


class Failing(torch.nn.Module):
    def forward(self, _):
        raise ValueError("of a module")


def multiply(_):
    torch.ones(2, 3) @ torch.ones(2, 3)


@pytest.mark.parametrize(("act", "error"), [(multiply, RuntimeError), (torch.nn.Sequential(Failing()), ValueError)])
def test_an_operation_or_a_module_that_raises_is_remembered(act, error):
    window = CountWindow()
    window.open()
    step()
    with pytest.raises(error):
        act(inputs())
    assert window.counter.interrupted
    window.close()
    assert window.counter.interrupted


def test_a_model_that_raises_is_freed_with_its_counter_on_the_stack():
    """Nobody but its own thread can take the counter off, and that thread may have nothing more to do."""
    before, model = left_behind(), torch.nn.Sequential(layer())
    freed = weakref.ref(model)
    model.register_forward_hook(lambda *_: 1 / 0)
    window = CountWindow()
    window.open()
    with suppress(ZeroDivisionError):
        model(inputs())
    del model, window
    gc.collect()
    assert freed() is None
    last = CountWindow()
    last.open()
    last.close()
    assert left_behind() == before


def test_checkpointing_that_stops_early_is_no_interruption():
    from torch.utils.checkpoint import checkpoint

    window, model = CountWindow(), torch.nn.Sequential(torch.nn.Linear(WIDE, WIDE), torch.nn.Tanh(), layer())
    window.open()
    squared(checkpoint(model, inputs(requires_grad=True), use_reentrant=False)).backward()
    window.close()
    assert window.counter.work().by_phase["recompute"] == 2 * ROWS * WIDE * WIDE, "the last product is not done again"
    assert not window.counter.interrupted
