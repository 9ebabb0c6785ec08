"""The first batch of a fit is examined once, and only if an item wants it."""

import pytest
import torch

from perf_callbacks.kernel.fit.first_batch import FirstBatch


class Shy(torch.Tensor):
    """A tensor that must not be asked if it is pinned."""

    def is_pinned(self, *_args):
        pytest.fail("is_pinned initializes CUDA")


def test_an_unwanted_batch_is_not_examined():
    first = FirstBatch()
    first.see(Shy())
    assert (first.kind, first.pinned, first.bytes) == (None, False, 0)


def test_only_the_first_wanted_batch_is_examined():
    first = FirstBatch(wanted=True)
    first.see({"x": (torch.ones(2, 3), [torch.ones(4)]), "name": "a"})
    first.see(torch.ones(100))
    assert (first.kind, first.pinned, first.bytes, first.wanted) == ("dict", False, 40, False)


class Broken(dict):
    """A batch that can't be read."""

    def values(self):
        raise ValueError


def test_a_batch_that_can_not_be_read_has_a_type_and_no_size():
    first = FirstBatch(wanted=True)
    first.see(Broken(x=1))
    assert (first.kind, first.pinned, first.bytes) == ("Broken", False, 0)
