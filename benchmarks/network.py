"""What the doors train: the network of `perf-callbacks check --cost`, whose step takes a fraction of a millisecond."""

import torch

from perf_callbacks.launch.cost.network import Classifier, Rows

__all__ = ["ROWS_EVERY", "Classifier", "Rows", "network"]

ROWS_EVERY = 50
"""Steps from one logged row to the next."""


def network():
    torch.manual_seed(0)
    return Classifier().network
