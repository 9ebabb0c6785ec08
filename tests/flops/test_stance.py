"""The compiler's stance while several counts overlap: eager until the last one ends, then as the first one found it."""

import gc
import itertools
import threading

import pytest
import torch
from counted import left_behind
from torch.utils import _python_dispatch as modes

from perf_callbacks.flops.counting.count_window import CountWindow
from perf_callbacks.kernel.process.compiler_stance import EagerStance


def stance():
    return left_behind()["stance"]


def set_to(name):
    torch.compiler.set_stance(name)


@pytest.fixture(autouse=True)
def _compiler():
    set_to("default")
    yield
    set_to("default")


class Holder:
    """Somebody who counts."""


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("found", ["default", "eager_on_recompile"])
def test_it_is_eager_until_the_last_holder_ends_in_whatever_order(order, found):
    set_to(found)
    before, owner, holders = left_behind(), EagerStance(), [Holder() for _ in range(3)]
    for holder in holders:
        owner.hold(holder)
    for number in order[:-1]:
        owner.release(holders[number])
        assert stance() == "force_eager"
    owner.release(holders[order[-1]])
    assert left_behind() == before


def test_overlapping_windows_that_end_first_in_first_out_leave_nothing():
    before, first, second = left_behind(), CountWindow(), CountWindow()
    first.open()
    second.open()
    first.close()
    assert stance() == "force_eager"
    second.close()
    first.close()
    assert left_behind() == before


def test_windows_that_overlap_on_two_threads_leave_nothing():
    def flags():
        return [value for name, value in sorted(vars(modes).items()) if name.startswith("_is_in_")]

    before, flags_before = left_behind(), flags()
    first, opened, closed = CountWindow(), threading.Event(), threading.Event()

    def other():
        second = CountWindow()
        second.open()
        opened.set()
        assert closed.wait(60)
        second.close()

    thread = threading.Thread(target=other)
    first.open()
    thread.start()
    assert opened.wait(60)
    first.close()
    closed.set()
    thread.join(60)
    assert (left_behind(), flags()) == (before, flags_before)


def test_a_holder_that_dies_lets_go():
    before, owner, holder = left_behind(), EagerStance(), Holder()
    owner.hold(holder)
    del holder
    gc.collect()
    owner.reconcile()
    assert left_behind() == before


def test_a_window_freed_while_open_leaves_a_silent_mode_until_the_next():
    before, window = left_behind(), CountWindow()
    window.open()
    counter = window.counter
    del window
    gc.collect()
    assert left_behind() == {**before, "modes": [counter]}
    assert counter.inert
    following = CountWindow()
    following.open()
    following.close()
    assert left_behind() == before


@pytest.mark.parametrize("theirs", ["default", "eager_on_recompile"])
def test_a_stance_that_somebody_else_sets_meanwhile_stays(theirs):
    owner, first, second = EagerStance(), Holder(), Holder()
    owner.hold(first)
    set_to(theirs)
    owner.release(first)
    assert stance() == theirs
    owner.hold(first)
    set_to("eager_on_recompile")
    owner.hold(second)
    assert stance() == "force_eager", "another count begins"
    owner.release(first)
    owner.release(second)
    assert stance() == "eager_on_recompile"


def test_a_foreign_block_that_outlives_a_window_does_not_bring_it_back():
    owner, holder = EagerStance(), Holder()
    owner.hold(holder)
    with torch.compiler.set_stance("eager_on_recompile"):
        owner.release(holder)
        assert stance() == "eager_on_recompile"
    assert stance() == "default"


def test_compiled_code_compiles_again_afterwards():
    torch._dynamo.reset()
    compiled = []

    def backend(graph, _inputs):
        compiled.append(graph)
        return graph

    function = torch.compile(lambda x: x + 1, backend=backend)
    first, second = CountWindow(), CountWindow()
    first.open()
    second.open()
    first.close()
    second.close()
    first.close()
    function(torch.ones(2))
    torch._dynamo.reset()
    assert len(compiled) == 1


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("closes", [False, True])
def test_within_a_compiled_call_no_mode_is_pushed_or_popped(eagerly, closes):
    """The call puts the thread's dispatch keys back: a mode popped in it would fail every operation that follows."""
    torch._dynamo.reset()
    before, window = left_behind(), CountWindow()
    inside = torch.compiler.disable(window.close if closes else window.open)

    @torch.compile(backend="eager")
    def region(x):
        y = x + 1
        inside()
        return y + 1

    if eagerly:
        set_to("force_eager")
    if closes:
        window.open()
    region(torch.ones(2))
    assert window.left_behind == closes
    torch.ones(2) + 1
    window.close()
    torch.ones(2) + 1
    set_to("default")
    torch._dynamo.reset()
    assert left_behind() == before


def test_within_a_backward_no_mode_is_pushed_or_popped():
    before, window = left_behind(), CountWindow()
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda _: window.open())
    (x * 2).sum().backward()
    assert left_behind() == before
    window.open()
    y = torch.ones(2, requires_grad=True)
    y.register_hook(lambda _: window.close())
    (y * 2).sum().backward()
    assert (window.left_behind, window.counter.inert) == (True, True)
    window.close()
    assert left_behind() == before
