"""Which slow code of one rank is seen under which layout: DDP, FSDP2 and tensor parallel, on a CPU.

    OMP_NUM_THREADS=1 python benchmarks/straggler_layouts.py --ranks 2

One rank sleeps for 0.2 s in one place, in five steps of each kind, and all other steps take some 20 ms. The table says
in how many of the five steps the rank was named, and by which cause.
"""

import argparse
import gc
import os
import socket
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from perf_callbacks import PerfConfig
from perf_callbacks.journal import Straggler, read
from perf_callbacks.loop import measure

LAYOUTS = ("ddp", "fsdp2", "tensor parallel")
PLACES = ("data", "between steps", "forward", "backward", "gc")
EACH, EVERY, WIDTH, WINDOW = 5, 8, 256, 50
STEPS = WINDOW * (1 + EACH * EVERY * len(PLACES) // WINDOW)


def place_of(step):
    """The place in which the slow rank sleeps in a step."""
    turn, rest = divmod(step, EVERY)
    return PLACES[turn % len(PLACES)] if rest == EVERY // 2 and step < EACH * EVERY * len(PLACES) else None


class Sleeps(torch.autograd.Function):
    """Sleeps in the forward or in the backward."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.seconds = backward
        time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None, None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.seconds = [0.0, 0.0]

    def forward(self, x):
        return self.down(torch.relu(Sleeps.apply(self.up(x), *self.seconds)))


def laid_out(layout, model, ranks):
    if layout == "ddp":
        return DistributedDataParallel(model)
    if layout == "fsdp2":
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
        for block in model:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def train(rank, ranks, port, layout, directory):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gc.disable()
    dist.init_process_group("gloo")
    kept = [[] for _ in range(1_500_000)]
    blocks = nn.Sequential(Block(), Block())
    model = laid_out(layout, blocks, ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    config = PerfConfig(output_dir=directory, gc="observe", flops="off", measure_peak="off", window=WINDOW)

    def fetched():
        for step in range(1, STEPS + 1):
            time.sleep(0.01)
            if rank == 1 and place_of(step) == "data":
                time.sleep(0.2)
            yield step, torch.ones(8, WIDTH)

    with measure(model=model, optimizer=optimizer, loader=fetched(), config=config) as perf:
        for step, x in perf.loader:
            place = place_of(step) if rank == 1 else None
            blocks[0].seconds[:] = [0.2 * (place == "forward"), 0.2 * (place == "backward")]
            if place == "between steps":
                time.sleep(0.2)
            if place == "gc":
                gc.collect()
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    del kept
    dist.destroy_process_group()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--layouts", nargs="*", default=LAYOUTS)
    given = arguments.parse_args()
    print("| one rank sleeps in | " + " | ".join(given.layouts) + " |\n|---" + "|---" * len(given.layouts) + "|")
    found = {}
    for layout in given.layouts:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryDirectory() as directory:
            mp.spawn(train, (given.ranks, port, layout, directory), given.ranks)
            events = [entry.record for entry in read(Path(directory)) if isinstance(entry.record, Straggler)]
        for place in PLACES:
            steps = [step for step in range(1, STEPS + 1) if place_of(step) == place]
            seen = Counter()
            for step in steps:
                named = [one for one in events if one.rank == 1 and one.step == step and one.seconds_lost > 0.05]
                seen.update([one.cause for one in named[:1]])
            found[layout, place] = ", ".join([f"{cause} {count} of {len(steps)}" for cause, count in seen.items()])
    for place in PLACES:
        print(f"| {place} | " + " | ".join([found[layout, place] or "not seen" for layout in given.layouts]) + " |")


if __name__ == "__main__":
    main()
