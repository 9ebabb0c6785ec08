"""A training that a test kills, through each integration: slow in its dataset, and maybe held up in C for a while."""

import ctypes
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.fit import summary_file
from perf_callbacks.kernel.records import fit_records

HELD_SECONDS = 6
"""Seconds for which C code holds the GIL."""


class Rows(torch.utils.data.Dataset):
    def __init__(self, plan):
        self.plan, self.number = plan, 0

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        self.number += 1
        directory = Path(self.plan["directory"])
        if (directory / "hold").exists():
            (directory / "hold").unlink()
            (directory / "held").touch()
            ctypes.PyDLL(None).sleep(HELD_SECONDS)
        time.sleep(0.1)
        (directory / "trains").touch()
        return {"x": torch.ones(4)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, **_):
        return {"loss": self.layer(x).square().mean()}


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.01)


def config(plan):
    return PerfConfig(output_dir=plan["directory"], enabled=plan["measured"])


def loop(plan):
    from perf_callbacks.loop import measure

    net = Net()
    optimizer = sgd(net)
    loader = DataLoader(Rows(plan))
    with measure(model=net, optimizer=optimizer, loader=loader, config=config(plan)) as perf:
        for batch in perf.loader:
            net(**batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()


def accelerate(plan):
    from accelerate import Accelerator

    from perf_callbacks.accelerate import attach

    accelerator = Accelerator(cpu=True)
    with attach(accelerator, config(plan)) if plan["measured"] else nullcontext():
        net = Net()
        net, optimizer, loader = accelerator.prepare(net, sgd(net), DataLoader(Rows(plan)))
        for batch in loader:
            accelerator.backward(net(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()


def transformers(plan):
    from trainings import models

    from perf_callbacks.transformers import PerfCallback

    arguments = models.training_arguments(plan["directory"], max_steps=10**5, per_device_train_batch_size=1)
    callbacks = [PerfCallback(config(plan))] if plan["measured"] else []
    models.trainer(arguments, *callbacks, model=Net(), train_dataset=Rows(plan)).train()


def lightning(plan):
    from lightning import pytorch as pl

    from perf_callbacks.lightning import PerfCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return sgd(self)

    trainer = pl.Trainer(
        default_root_dir=plan["directory"], max_steps=10**5, accelerator="cpu", devices=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        callbacks=[PerfCallback(config(plan))] if plan["measured"] else [],
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Rows(plan)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    summary_file.REPLACE_SECONDS, fit_records.ENOUGH_SECONDS = 2.0, 0.0
    plan = json.loads(sys.argv[1])
    globals()[plan["door"]](plan)
