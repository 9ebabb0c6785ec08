"""`torch.autograd.backward` and `grad`, shared by loops that overlap, and put back as they were found."""

import functools
import gc
import threading
import weakref

import pytest
import torch

from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.process import backward
from perf_callbacks.kernel.process.backward import Backwards
from perf_callbacks.kernel.process.watchdog import WATCHDOG

FOUND = torch.autograd.backward, torch.autograd.grad

TOLD = ["backward", "undecided"]
"""A backward that begins and ends."""


class Loop(backward.Loop):
    """Keeps what it was told, in the order in which it was told."""

    def __init__(self):
        self.told, tape = [], Tape()
        tape.write = lambda pair: self.told.append(pair[0].name.lower())
        super().__init__(tape, float, self.told.append)

    def begins_backward(self, root=None):
        self.told.append("asked")
        return super().begins_backward(root)

    def turn(self, stage):
        self.told.append("turns")

    def builds_graph(self):
        self.told.append("builds")


@pytest.fixture
def ours():
    yield Backwards()
    torch.autograd.backward, torch.autograd.grad = FOUND


def as_found():
    return (torch.autograd.backward, torch.autograd.grad) == FOUND


def loss():
    return torch.ones(2, requires_grad=True).sum()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_last_loop_to_leave_restores(ours, order):
    loops = [Loop(), Loop(), Loop()]
    for loop in loops:
        ours.join(loop)
    loss().backward()
    assert [loop.told for loop in loops] == [["asked", "turns", "undecided"]] * 3
    for place in order:
        assert not as_found()
        ours.release(loops[place])
        ours.release(loops[place])
    assert as_found()


def test_a_backward_in_another_thread_is_unheard(ours):
    loop = Loop()
    ours.join(loop)
    thread = threading.Thread(target=loss().backward)
    thread.start()
    thread.join(60)
    assert loop.told == []
    loss().backward()
    assert loop.told == TOLD


def test_a_backward_within_another_is_part_of_it(ours):
    loop = Loop()
    ours.join(loop)
    inner, weight = loss(), torch.ones(2, requires_grad=True)
    weight.register_hook(lambda _: inner.backward())
    (weight * 2).sum().backward()
    assert loop.told == TOLD


@pytest.mark.parametrize("state", [{"evaluating": True}, {"late": True}, {"marks_backward": False}], ids=str)
def test_a_backward_that_needs_more_than_a_mark_is_asked_about(ours, state):
    loop = Loop()
    vars(loop).update(state)
    ours.join(loop)
    loss().backward()
    assert loop.told == ["asked", "turns", "undecided"]


def test_the_rest_of_an_optimizer_step_after_a_backward_is_optimizer(ours):
    loop = Loop()
    ours.join(loop)
    loop.optimizing = 1
    loss().backward()
    assert loop.told == ["backward", "optimizer"]


@pytest.mark.parametrize("after", [0, 1], ids=["begin", "end"])
def test_a_mark_that_can_not_be_written_fails_the_loop_alone(ours, after):
    loop, failures, weight = Loop(), [], torch.ones(2, requires_grad=True)
    ours.join(loop)

    def write(_pair):
        if len(loop.told) == after:
            raise RuntimeError("a bug of ours")
        loop.told.append("written")

    loop.tape.write, loop.fail = write, failures.append
    weight.sum().backward()
    assert weight.grad.tolist() == [1.0, 1.0]
    assert [str(failure) for failure in failures] == ["a bug of ours"]


def test_gradients_are_a_backward_unless_they_are_part_of_a_loss(ours):
    loop, weight = Loop(), torch.ones(2, requires_grad=True)
    ours.join(loop)
    (gradient,) = torch.autograd.grad((weight**2).sum(), weight)
    assert gradient.tolist() == [2.0, 2.0]
    assert loop.told == ["asked", "turns", "undecided"]
    loop.told.clear()
    (penalty,) = torch.autograd.grad((weight**2).sum(), [weight], create_graph=True)
    assert loop.told == ["builds"]
    torch.autograd.grad(penalty.sum(), weight, None, None, True)
    assert loop.told == ["builds", "builds"]
    loop.told.clear()
    penalty.sum().backward()
    assert loop.told == TOLD


def test_the_compiler_makes_the_graph_of_a_backward_unheard(ours):
    loop = Loop()
    ours.join(loop)
    compiled = torch.compile(torch.nn.Linear(2, 2), backend="aot_eager")
    compiled(torch.ones(1, 2)).sum().backward()
    assert loop.told == TOLD


def test_an_error_in_a_backward_is_raised_and_its_end_told(ours):
    loop = Loop()
    ours.join(loop)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).sum().backward()
    assert loop.told == TOLD


def test_a_freed_loop_leaves_nothing_behind(ours):
    loop = Loop()
    ours.join(loop)
    freed = weakref.ref(loop)
    del loop
    while freed() is not None or not as_found():  # every test has a time limit, and the watchdog may be looking at it
        gc.collect()


def test_a_wrapper_of_the_program_on_top_stays_and_ours_passes_on(ours):
    loop, calls = Loop(), []
    ours.join(loop)
    beneath = torch.autograd.backward

    @functools.wraps(beneath)  # which copies its attributes too
    def theirs(*args, **kwargs):
        calls.append("theirs")
        return beneath(*args, **kwargs)

    torch.autograd.backward = theirs
    try:
        ours.release(loop)
        assert torch.autograd.backward is theirs
        loss().backward()
        assert (calls, loop.told) == (["theirs"], [])
        ours.join(loop)
        loss().backward()
        assert loop.told == ["asked", "turns", "undecided"]  # once: the wrapper beneath is ours too
        ours.release(loop)
        assert torch.autograd.backward is theirs
    finally:
        torch.autograd.backward = FOUND[0]


TAKEN = []
"""The options of calls that came to a wrapper of the program."""


def takes_options(inner):
    def theirs(tensors, **options):
        TAKEN.append(options)
        return inner(tensors, **options)

    return theirs


def has_an_unreadable_signature(inner):
    def theirs(*args, **options):
        TAKEN.append(options)
        return inner(*args, **options)

    theirs.__signature__ = "(tensors)"
    return theirs


def retains_graphs(inner):
    def theirs(tensors, grad_tensors=None, retain_graph=True, **options):  # noqa: FBT002 as they have it
        TAKEN.append(options)
        return inner(tensors, grad_tensors, retain_graph)

    return theirs


@pytest.mark.parametrize(
    ("wrap", "calls"),
    [
        (takes_options, [{"create_graph": False}]),
        (has_an_unreadable_signature, [{}]),
        (retains_graphs, [{}, {"hint": 1}]),  # the graph of the first is still there
    ],
)
def test_a_wrapper_beneath_ours_may_take_other_arguments(ours, monkeypatch, wrap, calls):
    theirs, loop = wrap(torch.autograd.backward), Loop()
    loss = torch.ones(2, requires_grad=True).sin().sum()
    TAKEN.clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "backward", theirs)
        ours.join(loop)
        for options in calls:
            torch.autograd.backward(loss, **options)
        ours.release(loop)
        assert torch.autograd.backward is theirs
    assert calls == TAKEN
    assert loop.told == ["asked", "turns", "undecided"] * len(calls)


def test_an_error_of_ours_at_a_gradient_fails_the_loop_alone(ours, monkeypatch):
    loop, weight = Loop(), torch.ones(2, requires_grad=True)
    ours.join(loop)
    monkeypatch.setattr(loop, "turn", lambda _: 1 / 0)
    (gradient,) = torch.autograd.grad(weight.sum(), weight)
    assert gradient.tolist() == [1.0, 1.0]
    assert [type(told) for told in loop.told] == [str, ZeroDivisionError]


def test_the_watchdog_is_not_asked_with_the_lock_held(ours, monkeypatch):
    free = []

    def watch(owner):  # a collection in the watchdog's lock, on another thread, may free a loop
        freeing = threading.Thread(target=owner.release, args=(Loop(),), daemon=True)
        freeing.start()
        freeing.join(60)
        free.append(not freeing.is_alive())

    monkeypatch.setattr(WATCHDOG, "watch", watch)
    loop = Loop()
    ours.join(loop)
    assert free == [True]
    assert not as_found()
