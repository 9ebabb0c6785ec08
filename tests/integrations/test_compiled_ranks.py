"""Ranks whose programs are compiled train as without us, to the last bit, whatever differs between the ranks.

As a program, this file is one of the ranks. What the callback might decide by is forced apart: one rank has compiled
something else before, and one is slower.
"""

import time

import pytest
import torch
import torch.distributed as dist
from jobs import IMPORTS, Job, rank as told
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


def compiled_blocks(model, *more):
    for block in model[:-1]:
        block.compile()
        for change in more:
            change(block)
    return model


def shard(module):
    return fully_shard(module, mesh=init_device_mesh("cpu", (2,)))


def sharded():
    model = blocks(Block)
    for block in model:
        shard(block)
    return torch.compile(shard(model))


def data_parallel_in_place():
    model = DistributedDataParallel(blocks(Block))
    model.compile()
    return model


def pipeline():
    model = blocks(Block, 4)
    part = (model[:2], model[2:])[dist.get_rank()]
    part.compile()
    return part


MODELS = {
    "tensor blocks": lambda: compiled_blocks(blocks(Parallel)),
    "tensor": lambda: torch.compile(blocks(Parallel)),
    "tensor checkpointed": lambda: torch.compile(blocks(lambda: Checkpointed(Parallel()))),
    "three tensor blocks": lambda: compiled_blocks(blocks(Parallel, 3)),
    "sharded": sharded,
    "sharded blocks": lambda: shard(compiled_blocks(blocks(Block), shard)),
    "data parallel": lambda: torch.compile(DistributedDataParallel(blocks(Block))),
    "data parallel in place": data_parallel_in_place,
    "pipeline": pipeline,
}


def batches(rank):
    """Equal batches on all ranks: they share a model, or average what they find on it."""
    for step in range(STEPS):
        if rank:
            time.sleep(0.02)
        yield torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))


def train(name, directory, rank):
    """Losses, gradients and random numbers of a rank."""
    model = MODELS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    schedule = None
    if name == "pipeline":
        stage = PipelineStage(model, rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, _: out.square().mean())
    losses, digests = [], []
    torch.manual_seed(1 + rank)
    config = PerfConfig(output_dir=directory, gc="off", peak_tflops="1", window=5)
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
            gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
            local = [getattr(gradient, "_local_tensor", gradient) for gradient in gradients]
            digests.append(sum(gradient.double().sum().item() for gradient in local))
            optimizer.step()
            optimizer.zero_grad()
    return losses, digests, torch.get_rng_state().sum().item()


def main(directory, names):
    from torch._dynamo.utils import counters

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    facts, rank = told.Facts(directory), dist.get_rank()
    for name in names:
        torch._dynamo.reset()
        counters.clear()
        if rank == 0:
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        outcome = train(name, directory, rank)
        facts.tell(**{name: [outcome, dict(counters["stats"])]})
        dist.barrier()
    told.end()


def jobs(directory, names):
    """By model, what both ranks leave without us and with us.

    Each process compiles for itself; only the binaries of equal C++ code are shared.
    """
    imports = (*IMPORTS["loop"], "torch._inductor.compile_fx", "torch.distributed.pipelining")
    caches = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    outcomes = []
    for switch in ("0", ""):
        environ = {"PERF_CALLBACKS": switch, "TORCHINDUCTOR_COMPILE_THREADS": "1", **caches}
        job = Job(
            __file__, directory / f"switch{switch}", imports=imports, environ=environ, plan={"names": names}
        ).to_its_end()
        outcomes.append([job.facts(rank) for rank in range(2)])
    return {name: [[facts[name] for facts in ranks] for ranks in outcomes] for name in names}


def test_ranks_of_a_tensor_parallel_model_with_compiled_blocks(tmp_path):
    off, ours = jobs(tmp_path, ["tensor blocks"])["tensor blocks"]
    assert ours == off
    assert trained(ours)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensor", "sharded", "data parallel"])
def test_ranks_of_a_compiled_model(tmp_path, kind):
    names = [name for name in MODELS if kind in name and name != "tensor blocks"]
    bad = [name for name, (off, ours) in jobs(tmp_path, names).items() if not trained(ours) or ours != off]
    assert bad == []


@pytest.mark.slow
def test_ranks_of_a_compiled_pipeline(tmp_path):
    """With our hook on a stage, the compiler makes one graph of what were two."""
    off, ours = jobs(tmp_path, ["pipeline"])["pipeline"]
    graphs = [[facts[1].pop("unique_graphs") for facts in ranks] for ranks in (off, ours)]
    assert all(count <= before for before, count in zip(*graphs, strict=True))
    assert ours == off


def trained(ranks):
    return all(len(losses) == STEPS and graphs["unique_graphs"] > 0 for (losses, _, _), graphs in ranks)


if __name__ == "__main__":
    main(**told.plan())
