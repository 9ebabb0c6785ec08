"""Measure two ranks of a DDP loop, one with a slower loader: rates per device, and of both ranks together."""

import tempfile
import time

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure


def slowly(loader, seconds):
    for batch in loader:
        time.sleep(seconds)
        yield batch


def train(rank, store):
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    data = TensorDataset(torch.ones(40960, 64), torch.zeros(40960, dtype=torch.long))
    loader = slowly(DataLoader(data, batch_size=32, sampler=DistributedSampler(data)), 0.02 if rank else 0.005)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = torch.optim.AdamW(model.parameters())
    config = PerfConfig(output_dir="out/two_ranks", window=10)
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for inputs, labels in perf.loader:
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        rates = {name: f"{rate:,.0f}" for name, rate in perf.row().items() if "samples" in name}
        print(f"{rank=}", rates, f"waited for data: {perf.summary.stage_seconds['data_time']:.1f} s")
    distributed.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(train, args=(f"file://{tempfile.mkdtemp()}/store",), nprocs=2)
