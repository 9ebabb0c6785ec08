"""FLOPs by module on the simulated accelerator, in a process of its own: `python modules_on_device.py`.

Autograd runs the backward of an accelerator in a thread of its own, as on a GPU. Prints the shares of each way of
checkpointing in units of one layer's forward, and if the backward ran in the main thread.
"""

import json
import os
import sys
from pathlib import Path
from threading import get_ident

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from perf_callbacks.flops.counting.counter import FlopCounter

sys.path.insert(0, str(Path(__file__).parents[1]))
import simulated_device

ROWS, WIDTH = 4, 8
ONE = 2 * ROWS * WIDTH * WIDTH


class Net(nn.Module):
    """Layers of which the middle ones are checkpointed."""

    def __init__(self, way):
        super().__init__()
        self.first, self.last, self.way = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), way
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def middle(self, x):
        return self.down(self.up(x).tanh()).tanh()

    def forward(self, x):
        x = self.first(x)
        x = self.middle(x) if self.way is None else checkpoint(self.middle, x, use_reentrant=self.way)
        return self.last(x)


def shares(way):
    """Forward, backward and extra by path, and the threads of the backward."""
    model, threads = Net(way).to(simulated_device.PLACE), set()
    model.first.weight.register_hook(lambda _: threads.add(get_ident()))
    with FlopCounter(model=model) as counter:
        model(torch.ones(ROWS, WIDTH, device=simulated_device.PLACE)).sum().backward()
    lines = counter.modules.lines(counter.work())
    found = {one.path: (one.forward_flops, one.backward_flops, one.extra_flops) for one in lines if one.hardware_flops}
    return {path: [flops / ONE for flops in each] for path, each in found.items()}, get_ident() in threads


if __name__ == "__main__":
    simulated_device.install()
    print(json.dumps([shares(way) for way in (True, None, False, True)]), flush=True)
    os._exit(0)  # the thread of the simulated device may outlive its owner, which ends the process with SIGABRT
