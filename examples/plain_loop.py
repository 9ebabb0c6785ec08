"""Measure a plain loop with an evaluation and a checkpoint; the code of its steps stays unchanged."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

data = TensorDataset(torch.randn(2048, 64), torch.randint(0, 10, (2048,)))
loader = DataLoader(data, batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters())
out = Path("out/plain_loop")
out.mkdir(parents=True, exist_ok=True)

with measure(model=model, optimizer=optimizer, loader=loader, config=PerfConfig(output_dir=str(out))) as perf:
    for epoch in range(18):
        for step, (inputs, labels) in enumerate(perf.loader):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step % 64 == 63:
                rate = perf.row().get("perf/samples_per_second", float("nan"))  # the row is empty if measuring is off
                print(f"{epoch=} {step=} loss={loss.item():.3f} {rate:,.0f} samples/s")
        with perf.evaluation(), torch.no_grad():
            model(data.tensors[0]).argmax(-1)
        with perf.checkpoint():
            torch.save({"model": model.state_dict(), "perf": perf.state()}, out / "checkpoint.pt")
