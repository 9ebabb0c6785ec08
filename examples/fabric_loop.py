"""Measure a loop with Lightning Fabric and accumulation. For two ranks: python examples/fabric_loop.py 2."""

import sys

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

ACCUMULATE = 2


def train(fabric):
    fabric.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(2048, 64), torch.randint(0, 10, (2048,)))
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=32))
    config = PerfConfig(output_dir="out/fabric_loop", window=10)
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for number, (inputs, labels) in enumerate(perf.loader, 1):
            with fabric.no_backward_sync(model, enabled=number % ACCUMULATE != 0):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                fabric.backward(loss / ACCUMULATE)
            if number % ACCUMULATE == 0:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
        metrics = perf.row()
        fabric.print({name: f"{metrics[name]:.4g}" for name in ("perf/step_time", "perf/tflops") if name in metrics})


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto").launch(train)
