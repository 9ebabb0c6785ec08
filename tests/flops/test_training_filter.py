"""Work that is not training work runs under the counter as if the counter were not there."""

import pytest
import torch
from flops.products import PRODUCT, inputs, layer, squared

from perf_callbacks.flops.counting.counter import FlopCounter


class Books:
    """A switch."""

    on = True

    def __call__(self):
        return self.on


def counting():
    counter = FlopCounter()
    counter.books = Books()
    return counter


def test_what_runs_while_nothing_is_booked_is_neither_counted_nor_noted():
    counter, other = counting(), torch.nn.Linear(3, 3)
    with counter:
        squared(layer()(inputs())).backward()
        counter.books.on = False
        other(torch.ones(2, 3)).sum().backward()
        torch.cdist(torch.ones(30, 3), torch.ones(30, 3))
        counter.books.on = True
        squared(layer()(inputs())).backward()
    assert counter.work().by_phase == {"forward": 2 * PRODUCT, "backward": 2 * PRODUCT}
    assert (counter.weights.coverage(), dict(counter.observed.unknown), counter.interrupted) == (1.0, {}, False)


def test_an_error_while_nothing_is_booked_interrupts_nothing():
    counter = counting()
    with counter:
        counter.books.on = False
        with pytest.raises(RuntimeError):
            torch.nn.Linear(3, 3)(torch.ones(2, 2))
        counter.books.on = True
    assert not counter.interrupted


@pytest.mark.parametrize("at_first", [True, False])
def test_a_module_may_begin_in_one_state_and_end_in_the_other(at_first):
    counter, model = counting(), layer()
    model.register_forward_hook(lambda *_: setattr(counter.books, "on", not at_first))
    counter.books.on = at_first
    with counter:
        model(inputs())
    assert counter.work().by_phase == ({"forward": PRODUCT} if at_first else {})
    assert not counter.interrupted


def test_a_switch_that_raises_books_nothing_and_ends_nothing():
    counter = FlopCounter()
    counter.books = lambda: 1 / 0
    with counter:
        layer()(inputs())
    assert counter.work().by_phase == {}
    assert counter.errors["books: ZeroDivisionError"]
