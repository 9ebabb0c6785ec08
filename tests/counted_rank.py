"""One rank of a job whose FLOPs are counted, in a process of its own.

What its batches really take is left in a file.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from counted import ids, loop, truth
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from trainings.models import llama

STEPS = 23
STEP_SECONDS = 0.05


class Unhurried(list):
    """Batches that come slowly enough for ranks to hear of each other before the last one."""

    def __iter__(self):
        for batch in super().__iter__():
            time.sleep(STEP_SECONDS)
            yield batch


class Feed(nn.Module):
    """A wide layer and back, without biases."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 32, bias=False), nn.Linear(32, 8, bias=False)

    def forward(self, x):
        return self.down(self.up(x).relu())


def uneven(rank):
    """Batches of two shapes, others on each rank, each seen early."""
    return [ids(1 + rank, 8 + 3 * rank) if step % 3 else ids(4 - rank, 6 + rank) for step in range(STEPS)]


def ddp(rank):
    batches = uneven(rank)
    return llama(), DistributedDataParallel(llama()), batches


def fsdp2(rank):
    model, mesh = llama(num_hidden_layers=2), init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return llama(num_hidden_layers=2), fully_shard(model, mesh=mesh), uneven(rank)


def tensor(_rank):
    mesh = init_device_mesh("cpu", (2,))
    model = parallelize_module(Feed(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return Feed(), model, [torch.randn(4, 8, generator=torch.Generator().manual_seed(step)) for step in range(STEPS)]


def main(directory, kind):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    plain, model, batches = globals()[kind](rank)
    losses = loop(directory, model, Unhurried(batches))
    truths = [truth(plain, batch) for batch in batches]
    (Path(directory) / f"truths{rank}.json").write_text(json.dumps({"truths": truths, "losses": losses}))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads at times abort the interpreter's own way out


if __name__ == "__main__":
    main(*sys.argv[1:3])
