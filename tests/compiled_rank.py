"""One rank of a job whose programs are compiled, in a process of its own. Its losses are left in a file.

What the callback might decide by is forced apart: one rank has compiled something else before, and one is slower.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

STEPS = 20
WIDTH = 32


class Reduced(torch.autograd.Function):
    """Sum of all ranks in the forward, and nothing in the backward."""

    @staticmethod
    def forward(_, x):
        return collectives.wait_tensor(collectives.all_reduce(x, "sum", dist.group.WORLD))

    @staticmethod
    def backward(_, gradient):
        return gradient


class Copied(torch.autograd.Function):
    """Nothing in the forward, and the sum of all ranks in the backward."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return collectives.wait_tensor(collectives.all_reduce(gradient.contiguous(), "sum", dist.group.WORLD))


class Parallel(nn.Module):
    """Attention and MLP side by side, each split over the ranks: the compiler may change the order of their sums."""

    def __init__(self):
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x):
        shared = Copied.apply(x)
        attended = Reduced.apply(self.o(torch.tanh(self.q(shared))))
        fed = self.down(nn.functional.silu(self.up(shared)))
        return x + attended + Reduced.apply(nn.functional.dropout(fed, 0.1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x):
        return x + nn.functional.dropout(self.down(nn.functional.silu(self.up(x))), 0.1)


class Checkpointed(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def blocks(kind, number=2):
    torch.manual_seed(0)
    return nn.Sequential(*[kind() for _ in range(number)], nn.Linear(WIDTH, 4))


def tensor():
    return torch.compile(blocks(Parallel))


def tensor_checkpointed():
    return torch.compile(blocks(lambda: Checkpointed(Parallel())))


def tensor_blocks(number=2):
    model = blocks(Parallel, number)
    for block in model[:-1]:
        block.compile()
    return model


def tensor_three_blocks():
    return tensor_blocks(3)


def sharded():
    model, mesh = blocks(Block), init_device_mesh("cpu", (2,))
    for block in model:
        fully_shard(block, mesh=mesh)
    return torch.compile(fully_shard(model, mesh=mesh))


def sharded_blocks():
    model, mesh = blocks(Block), init_device_mesh("cpu", (2,))
    for block in model[:-1]:
        block.compile()
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def data_parallel():
    return torch.compile(DistributedDataParallel(blocks(Block)))


def data_parallel_in_place():
    model = DistributedDataParallel(blocks(Block))
    model.compile()
    return model


def pipeline():
    model = blocks(Block, 4)
    part = (model[:2], model[2:])[dist.get_rank()]
    part.compile()
    return part


def batches(rank):
    """Equal batches on all ranks: they share a model, or average what they find on it."""
    for step in range(STEPS):
        if rank:
            time.sleep(0.02)
        yield torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))


def train(kind, directory, rank):
    model = globals()[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    schedule = None
    if kind == "pipeline":
        stage = PipelineStage(model, rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, _: out.square().mean())
    losses, digests = [], []
    torch.manual_seed(1 + rank)
    config = PerfConfig(output_dir=str(directory), gc="off", peak_tflops="1", window=5)
    with measure(model=model, optimizer=optimizer, loader=batches(rank), config=config) as perf:
        for batch in perf.loader:
            if schedule is None:
                loss = model(batch).square().mean()
                loss.backward()
                losses.append(loss.item())
            else:
                parts = []
                schedule.step(*([batch] if rank == 0 else []), **({"target": batch, "losses": parts} if rank else {}))
                losses.append(sum(part.item() for part in parts))
            local = [getattr(one.grad, "_local_tensor", one.grad) for one in model.parameters() if one.grad is not None]
            digests.append(sum(gradient.double().sum().item() for gradient in local))
            optimizer.step()
            optimizer.zero_grad()
    return losses, digests, torch.get_rng_state().sum().item()


def main(directory, kind):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    facts = train(kind, directory, rank)
    from torch._dynamo.utils import counters

    Path(directory, f"facts{rank}.json").write_text(json.dumps([*facts, dict(counters["stats"])]))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads at times abort the interpreter's own way out


if __name__ == "__main__":
    main(*sys.argv[1:3])
