"""Measure a loop with Accelerate: one line attaches the callback to the accelerator."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from perf_callbacks.accelerate import attach

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_dir="out/accelerate_loop")
attach(accelerator)

data = TensorDataset(torch.randn(2048, 64), torch.randint(0, 10, (2048,)))
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters())
training, validation = DataLoader(data, batch_size=32, shuffle=True), DataLoader(data, batch_size=256)
model, optimizer, training, validation = accelerator.prepare(model, optimizer, training, validation)

for epoch in range(3):
    model.train()
    for inputs, labels in training:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        right = sum((model(inputs).argmax(-1) == labels).sum().item() for inputs, labels in validation)
    accelerator.log({"accuracy": right / len(data)}, step=epoch)
    accelerator.save_state(f"out/accelerate_loop/checkpoint-{epoch}")
accelerator.end_training()
