"""Ranks that do different work on purpose: none is blamed, and the table at the end says why ranks weren't compared.

As a program, this file is one of the ranks.
"""

import functools
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from jobs import Job, rank as told
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from trainings.runs import records

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.fit_records import Run, Summary
from perf_callbacks.kernel.records.rank_records import Straggler
from perf_callbacks.loop import measure
from perf_callbacks.stragglers.text import DIFFERENT_WORK, NOT_COMPARABLE, lines

pytestmark = pytest.mark.slow


def update(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss.detach())


def pipeline(rank, model, optimizer, batch):
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


def parameter_server(rank, model, optimizer, batch):
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


def two_models(rank, model, optimizer, batch):
    loss = model(batch).square().mean()
    if rank == 1:
        time.sleep(0.01)
    update(loss, optimizer)


@functools.cache
def waiting():
    """A compiled program with a wait for other ranks in it."""

    @torch.compile
    def call(model, batch):
        out = model(batch)
        total = out.detach().sum()
        dist.all_reduce(total)
        return out + total

    return call


def compiled_wait(rank, model, optimizer, batch):
    loss = waiting()(model, batch).square().mean()
    if rank == 0:
        time.sleep(0.01)
    update(loss, optimizer)


STEPS = {step.__name__: step for step in (pipeline, parameter_server, two_models, compiled_wait)}


def train(name, directory, rank):
    torch.manual_seed(0)
    model = nn.Linear(8, 8 + (name == "two_models") * rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    if name == "compiled_wait":
        waiting()(model, torch.ones(4, 8))
    config = PerfConfig(output_dir=str(directory), window=10, gc="off", flops="off", measure_peak="off")
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(4, 8)] * 60, config=config) as perf:
        for batch in perf.loader:
            STEPS[name](rank, model, optimizer, batch)
        dist.barrier()


class Layers(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.linear, self.seconds = nn.Linear(8, 8), seconds

    def forward(self, batch):
        time.sleep(self.seconds)
        return self.linear(batch)


def stages(directory, rank):
    """A pipeline of two stages, each sharded over the other dimension of the mesh. The last has thrice the work."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("pp", "dp"))
    place, other = mesh["pp"].get_local_rank(), (rank + ranks // 2) % ranks
    model = fully_shard(Layers(0.06 if place else 0.02), mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    config = PerfConfig(output_dir=str(directory), window=20, gc="off", flops="off", measure_peak="off")
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


def main(directory):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if dist.get_world_size() == 4:
        stages(directory, rank)
    else:
        for name in STEPS:
            train(name, Path(directory, name), rank)
    told.end()


def ran(directory, world_size):
    return Job(__file__, directory, world_size=world_size).to_its_end().directory


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    """Where two ranks have trained in each way."""
    return ran(tmp_path_factory.mktemp("trainings"), 2)


def summary_of(directory):
    return next(summary for summary in records(directory, Summary) if summary.stragglers is not None)


@pytest.mark.parametrize("name", STEPS)
def test_no_rank_is_blamed(trainings, name):
    assert records(trainings / name, Straggler) == []
    summary = summary_of(trainings / name)
    assert [*lines(summary.stragglers)] == [NOT_COMPARABLE if name == "compiled_wait" else DIFFERENT_WORK]
    assert summary.memory.global_batch == (None if name == "pipeline" else 8)


def test_a_long_stage_of_a_sharded_pipeline_is_no_slow_rank(tmp_path):
    directory = ran(tmp_path, 4)
    assert [straggler for straggler in records(directory, Straggler) if straggler.steps > 1] == []
    sentences = [*lines(summary_of(directory).stragglers)]
    assert [line for line in sentences if line.startswith("uneven stages of the pipeline cost")], sentences
    assert [run.data_parallel for run in records(directory, Run)] == [2]


if __name__ == "__main__":
    main(**told.plan())
