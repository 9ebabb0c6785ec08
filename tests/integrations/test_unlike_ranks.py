"""Ranks that do different work on purpose: none is blamed, and the table at the end says why ranks weren't compared."""

import pytest
from launching import run_ranks
from trainings.runs import records

from perf_callbacks.kernel.records.fit_records import Run, Summary
from perf_callbacks.kernel.records.rank_records import Straggler
from perf_callbacks.stragglers.text import DIFFERENT_WORK, NOT_COMPARABLE, lines

pytestmark = pytest.mark.slow

STEPS = 60

UPDATE = """
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach())
"""

JOBS = {
    "pipeline": """
        if rank == 0:
            hidden = model(batch)
            time.sleep(0.01)
            dist.send(hidden.detach(), 1)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, 1)
            hidden.backward(gradient)
        else:
            hidden = torch.empty(4, 8)
            dist.recv(hidden, 0)
            hidden.requires_grad_()
            model(hidden).square().mean().backward()
            dist.send(hidden.grad, 0)
        optimizer.step()
        optimizer.zero_grad()
""",
    "parameter server": """
        gradient = torch.zeros(8, 8)
        if rank == 1:
            model(batch).square().mean().backward()
            gradient = model.weight.grad
        dist.reduce(gradient, 0)
        if rank == 0:
            time.sleep(0.01)
        model.weight.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
        dist.broadcast(model.weight.data, 0)
""",
    "two models": """
        loss = model(batch).square().mean()
        if rank == 1:
            time.sleep(0.01)
"""
    + UPDATE,
    "compiled wait": """
        loss = compiled(batch).square().mean()
        if rank == 0:
            time.sleep(0.01)
"""
    + UPDATE,
}

RANK = """
import os, sys, time, torch, torch.distributed as dist
from torch import nn
from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(8, 8 + {models} * rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

@torch.compile(disable={eager})
def compiled(batch):
    out = model(batch)
    total = out.detach().sum()
    dist.all_reduce(total)
    return out + total

if not {eager}:
    compiled(torch.ones(4, 8))
config = PerfConfig(output_dir=sys.argv[1], window=10, gc="off", flops="off", measure_peak="off")
with measure(model=model, optimizer=optimizer, loader=[torch.ones(4, 8)] * {steps}, config=config) as perf:
    for batch in perf.loader:
        {step}
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("name", JOBS)
def test_no_rank_is_blamed(tmp_path, name):
    code = RANK.format(eager=name != "compiled wait", models=name == "two models", steps=STEPS, step=JOBS[name].strip())
    assert run_ranks(code, tmp_path) == [0, 0]
    assert records(tmp_path, Straggler) == []
    summary = next(one for one in records(tmp_path, Summary) if one.stragglers is not None)
    assert [*lines(summary.stragglers)] == [NOT_COMPARABLE if name == "compiled wait" else DIFFERENT_WORK]
    assert summary.memory.global_batch == (None if name == "pipeline" else 8)


STAGES = """
import sys, time, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "dp"))
place, other = mesh["pp"].get_local_rank(), (dist.get_rank() + dist.get_world_size() // 2) % dist.get_world_size()

class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, batch):
        time.sleep(0.06 if place else 0.02)
        return self.linear(batch)

model = fully_shard(Layers(), mesh=mesh["dp"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
config = PerfConfig(output_dir=sys.argv[1], window=20, gc="off", flops="off", measure_peak="off")
with measure(model=model, optimizer=optimizer, loader=[torch.ones(4, 8)] * 45, config=config) as perf:
    for batch in perf.loader:
        received = torch.empty(4, 8)
        if place == 0:
            hidden = model(batch)
            dist.isend(hidden.detach(), other).wait()
            dist.irecv(received, other).wait()
            hidden.backward(received)
        else:
            dist.irecv(received, other).wait()
            received.requires_grad_()
            model(received).square().mean().backward()
            dist.isend(received.grad, other).wait()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
dist.destroy_process_group()
"""
"""A pipeline of two stages, each sharded over the other dimension of the mesh. The last stage has thrice the work."""


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_long_stage_of_a_sharded_pipeline_is_no_slow_rank(tmp_path, ranks):
    assert run_ranks(STAGES, tmp_path, world_size=ranks) == [0] * ranks
    assert [one for one in records(tmp_path, Straggler) if one.steps > 1] == []
    summary = next(one for one in records(tmp_path, Summary) if one.stragglers is not None)
    told = [*lines(summary.stragglers)]
    assert [line for line in told if line.startswith("uneven stages of the pipeline cost")], told
    assert [run.data_parallel for run in records(tmp_path, Run)] == [ranks // 2]
