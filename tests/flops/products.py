"""One product, forward and backward, to see who asked for it."""

import torch
from torch import nn

from perf_callbacks.flops.counting.counter import FlopCounter

ROWS, WIDE, OUT = 4, 8, 6
PRODUCT = 2 * ROWS * WIDE * OUT


def squared(y):
    return y.square().sum()


def counted(work):
    with FlopCounter() as counter:
        work()
    return counter.work()


def inputs(**options):
    return torch.randn(ROWS, WIDE, **options)


def layer():
    return nn.Linear(WIDE, OUT, bias=False)


def again(x, weight):
    """A product that neither a module nor a checkpoint stands around."""
    return x @ weight.T
