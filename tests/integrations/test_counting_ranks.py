"""Two ranks that train together: each counts what it does, and what all of them do is the sum.

As a program, this file is one of the ranks. What its batches really take is left as facts.
"""

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from counted import counts, ids, known, loop, truth
from jobs import Job, rank as told
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from trainings.models import llama
from trainings.runs import records, steps

from perf_callbacks.kernel.records.fit_records import Window

RANKS = (0, 1)
WINDOW = 5
STEPS = 23
STEP_SECONDS = 0.05


class Slow(list):
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
    return llama(), DistributedDataParallel(llama()), uneven(rank)


def fsdp2(rank):
    model, mesh = llama(num_hidden_layers=2), init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return llama(num_hidden_layers=2), fully_shard(model, mesh=mesh), uneven(rank)


def tensor(_rank, *names):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=names or None)
    model = parallelize_module(Feed(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return Feed(), model, [torch.randn(4, 8, generator=torch.Generator().manual_seed(step)) for step in range(STEPS)]


def named_tensor(rank):
    return tensor(rank, "tp")


KINDS = {kind.__name__: kind for kind in (ddp, fsdp2, tensor, named_tensor)}


def main(directory):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    facts = told.Facts(directory)
    for name, kind in KINDS.items():
        plain, model, batches = kind(dist.get_rank())
        loop(Path(directory, name), model, Slow(batches), peak_tflops="1")
        facts.tell(**{name: [truth(plain, batch) for batch in batches]})
        dist.barrier()
    told.end()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Ranks that went through a training of each kind."""
    environ = {"PERF_CALLBACKS_WINDOW": str(WINDOW)}
    job = Job(__file__, tmp_path_factory.mktemp("job"), environ=environ).to_its_end()
    assert not [rank for rank in RANKS if "stopped measuring" in job.errors(rank)], job.errors(0)
    return job


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_each_rank_counts_the_whole_model_on_its_own_batches(job, kind):
    directory = job.directory / kind
    for rank in RANKS:
        true, flops = job.facts(rank)[kind], known(directory, rank=rank)
        assert [wrong for wrong, right in zip(flops, true, strict=True) if wrong not in {None, right}] == []
        assert flops[WINDOW:] == true[WINDOW:]
        for record in counts(directory, rank=rank):
            assert record.model_flops in true
            assert (record.errors, record.uncounted, record.lower_bound, record.coverage) == ({}, {}, False, 1.0)
    assert job.facts(0)[kind] != job.facts(1)[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_the_flops_of_all_ranks_are_the_sum_of_their_counts(job, kind):
    by_rank = [steps(job.directory / kind, rank=rank) for rank in RANKS]
    windows = [window for window in records(job.directory / kind, Window) if window.first_step > WINDOW]
    assert windows
    for window in windows:
        own = [step for rank in by_rank for step in rank if window.first_step <= step["step"] <= window.last_step]
        assert all(step.get("excluded") in {None, "recounted"} for step in own)
        assert window.model_flops == sum(step["model_flops"] for step in own)
        assert window.hardware_flops >= window.model_flops


@pytest.mark.slow
def test_with_tensor_parallelism_a_rank_does_half_and_the_whole_is_known(job):
    directory = job.directory / "tensor"
    for rank in RANKS:
        whole = job.facts(rank)["tensor"][0]
        for record in counts(directory, rank=rank):
            assert record.model_flops == whole // 2
            assert record.logical_flops == whole
            assert (record.errors, record.uncounted, record.lower_bound) == ({}, {}, False)
        assert known(directory, rank=rank)[-1] == whole // 2


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "per_step"), [("named_tensor", 4), ("tensor", None)])
def test_samples_of_ranks_that_share_a_model_count_once(job, kind, per_step):
    """Without a name of the mesh, the layout is ambiguous."""
    windows = records(job.directory / kind, Window)
    assert windows
    assert {window.samples and window.samples / window.steps for window in windows} == {per_step}


if __name__ == "__main__":
    main(**told.plan())
