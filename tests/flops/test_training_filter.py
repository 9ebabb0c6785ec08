"""Work that is not training work runs under the counter as if the counter were not there."""

import pytest
import torch
from flops.products import PRODUCT, inputs, layer, squared
from torch.autograd import Variable

from perf_callbacks.flops.counting import counter as counters
from perf_callbacks.flops.counting.counter import FlopCounter


class Switch:
    """Lets everything through, or nothing."""

    def __init__(self):
        self.on = True

    def is_training_work(self):
        return self.on

    def is_between_stages(self):
        return True


class Broken:
    """A filter that raises."""

    def is_training_work(self):
        return 1 / 0


def counting():
    switch = Switch()
    return FlopCounter(switch), switch


def test_work_that_is_not_booked_is_neither_counted_nor_noted():
    (counter, switch), other = counting(), torch.nn.Linear(3, 3)
    with counter:
        squared(layer()(inputs())).backward()
        switch.on = False
        other(torch.ones(2, 3)).sum().backward()
        torch.cdist(torch.ones(30, 3), torch.ones(30, 3))
        with pytest.raises(RuntimeError):
            other(torch.ones(2, 2))
        switch.on = True
        squared(layer()(inputs())).backward()
    assert counter.work().by_phase == {"forward": 2 * PRODUCT, "backward": 2 * PRODUCT}
    assert (counter.weights.coverage(), dict(counter.observed.unknown), counter.interrupted) == (1.0, {}, False)


@pytest.mark.parametrize("at_first", [True, False])
def test_a_module_may_begin_and_end_in_different_states(at_first):
    (counter, switch), model = counting(), layer()
    model.register_forward_hook(lambda *_: setattr(switch, "on", not at_first))
    switch.on = at_first
    with counter:
        model(inputs())
    assert counter.work().by_phase == ({"forward": PRODUCT} if at_first else {})
    assert not counter.interrupted


def test_a_final_callback_of_autograd_runs_no_product_of_the_forward():
    (counter, switch), weight = counting(), torch.ones(3, 3, requires_grad=True)
    loss = squared(layer()(inputs()))
    loss.register_hook(lambda _: Variable._execution_engine.queue_callback(lambda: torch.ones(2) + 1))
    with counter:
        switch.on = False
        kept = torch.ones(2, 3) @ weight  # the newest node, which no backward runs
        switch.on = True
        loss.backward()
    assert kept.requires_grad
    assert counter.work().by_phase == {"backward": PRODUCT}


def test_without_a_callback_at_its_end_a_backward_is_no_interruption(monkeypatch):
    counter, loss = FlopCounter(), squared(layer()(inputs()))
    monkeypatch.setattr(counters, "Variable", None)
    with counter:
        loss.backward()
    assert counter.work().by_phase == {"backward": PRODUCT}
    assert counter.errors["backward: AttributeError"]
    assert not counter.interrupted


def test_a_switch_that_raises_books_nothing_and_ends_nothing():
    counter = FlopCounter(Broken())
    with counter:
        layer()(inputs())
    assert counter.work().by_phase == {}
    assert counter.errors["filter: ZeroDivisionError"]
