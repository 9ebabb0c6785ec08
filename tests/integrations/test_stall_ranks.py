"""Two real ranks, of which rank 1 hangs: which of them is named, and how.

As a program, this file is one of the ranks. The comments name the lines that a message has to name.
"""

import ctypes
import os
import re
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from jobs import Job
from jobs.rank import plan
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
from perf_callbacks.ranks.rounds import OBEYED
from perf_callbacks.ranks.store import default_store
from perf_callbacks.stalls import diagnosis

HANG_AT = 6


class Rows(torch.utils.data.Dataset):
    def __init__(self, hangs_at):
        self.hangs_at = hangs_at

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == self.hangs_at:
            threading.Event().wait()
        return torch.ones(8)


class Net(nn.Sequential):
    def __init__(self, *, hangs):
        super().__init__(nn.Linear(8, 8), nn.Linear(8, 8))
        self.hangs, self.calls = hangs, 0

    def forward(self, x):
        self.calls += 1
        if self.hangs and self.calls == HANG_AT:
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()  # hang: lock
        return super().forward(x)


def model_of(case, *, hangs):
    torch.manual_seed(0)
    net = Net(hangs=hangs and case in {"tensor parallel", "lock"})
    if case == "tensor parallel":
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        return parallelize_module(net, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    return DistributedDataParallel(net)


def before(case, *, hangs):
    """What a rank does before the step that hangs. True: it leaves the loop."""
    if hangs and case == "raise":
        raise ValueError("no\nsuch file")
    if hangs and case == "leave":
        return True
    if case in {"store", "monitored barrier"}:
        if hangs:
            threading.Event().wait()  # hang: event
        if case == "store":
            default_store().wait(["never"])  # hang: store
        dist.monitored_barrier()  # hang: barrier
    return False


def train(case, directory, *, hangs):
    model, workers = model_of(case, hangs=hangs), int(case == "worker")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    loader = DataLoader(Rows(HANG_AT - 1 if hangs and workers else None), num_workers=workers)
    config = PerfConfig(output_dir=directory, stall_after="2", flops="off", gc="off", loaders="off", affinity="off")
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        if hangs and case == "start":
            while not OBEYED:
                time.sleep(0.01)
            time.sleep(0.3)
            ctypes.PyDLL(None).sleep(1000)
        for step, batch in enumerate(perf.loader, 1):
            if step == HANG_AT and before(case, hangs=hangs):
                break
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()  # hang: left


def main(case, directory):
    torch.set_num_threads(1)
    diagnosis.LONGER = 1 if case == "start" else 4
    dist.init_process_group("gloo")
    try:
        train(case, directory, hangs=os.environ["RANK"] == "1")
    except ValueError:
        threading.Event().wait()


def at(comment):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(number for number, text in enumerate(lines, 1) if text.endswith(f"  # hang: {comment}"))
    return re.escape(f"test_stall_ranks.py:{number} ")


WORKER = r"Rank 1 waits for the loader's worker 0, which sleeps( in the kernel's `\w+`)?: `py-spy dump --pid \d+` shows"
CASES = {
    "lock": rf"Rank 1 is in forward: {at('lock')}`(Net\.)?forward`\. Rank 0 waits in backward",
    "tensor parallel": rf"Rank 1 is in forward: {at('lock')}`(Net\.)?forward`\. Rank 0 waits in communication: ",
    "store": rf"Rank 1 is in other code: {at('event')}.*Rank 0 waits in communication: {at('store')}",
    "monitored barrier": rf"Rank 1 is in other code: {at('event')}.*Rank 0 waits in communication: {at('barrier')}",
    "leave": rf"Rank 1 has left the training loop after step 5, and waits in communication: {at('left')}`train`, in "
    r"distributed_c10d\.py:\d+ `barrier`\. Rank 0 waits in backward: ",
    "start": r"Rank 1 is silent, last heard of in step 1 in other code: test_stall_ranks\.py:\d+ `\w+`",
    "raise": r"Rank 1 has ended the training after step 5: ValueError: no\\nsuch file\. Rank 0 waits in backward: ",
    "worker": rf"Rank 1 is in data: test_stall_ranks\.py:\d+ `train`, in .*Rank 0 waits in backward: .*{WORKER}",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_rank_that_hangs_is_named_with_the_place(tmp_path, case):
    with Job(__file__, tmp_path, plan={"case": case}) as job:
        job.until(lambda: stalls(job))
    assert re.search(CASES[case], stalls(job)[0]), stalls(job)[0]


def stalls(job):
    lines = [line for rank in range(2) for line in job.errors(rank).splitlines()]
    return [line for line in lines if "no step for" in line]


if __name__ == "__main__":
    main(**plan())
