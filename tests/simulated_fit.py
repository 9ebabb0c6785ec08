"""A short fit on the simulated accelerator, in a process of its own: `python simulated_fit.py INTEGRATION DIRECTORY`.

The device works 4 ms in the forward, 8 in the backward and 2 in the optimizer. The last line printed is JSON with
records of the journal. SIMULATED_… choose the kind of device, WAITS=1 makes each step end with a wait for the device.
"""

import json
import os
import sys
from dataclasses import asdict

import simulated_device
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from trainings.runs import records

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.fit_records import Run, Summary

FORWARD_MS, BACKWARD_MS, OPTIMIZER_MS = 4, 8, 2
STEPS, WIDTH = int(os.environ.get("STEPS", "30")), 4
WAITS = os.environ.get("WAITS") == "1"


class _Backward(torch.autograd.Function):
    """Lets the device work in the backward."""

    @staticmethod
    def forward(_context, loss):
        return loss.clone()

    @staticmethod
    def backward(_context, gradient):
        simulated_device.DEVICE.busy(BACKWARD_MS)
        return gradient


class Model(nn.Module):
    """A model whose forward and backward let the device work."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)

    def forward(self, rows, labels=None):
        simulated_device.DEVICE.busy(FORWARD_MS)
        return {"loss": _Backward.apply(self.linear(rows).square().mean())}


class Optimizer(torch.optim.SGD):
    """An optimizer that lets the device work."""

    def step(self, closure=None):
        simulated_device.DEVICE.busy(OPTIMIZER_MS)
        return super().step(closure)


class Rows(Dataset):
    """Rows of ones."""

    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, _index):
        return {"rows": torch.ones(WIDTH), "labels": torch.zeros(1)}


def step_ended():
    """Wait for the device, if the fit is to do so."""
    if WAITS:
        torch.get_device_module(simulated_device.NAME).synchronize()


def loop(config):
    """Train in a plain loop."""
    from perf_callbacks.loop import measure

    model = Model().to(simulated_device.PLACE)
    optimizer, loader = Optimizer(model.parameters(), lr=0.1), DataLoader(Rows(), batch_size=4)
    capture = os.environ.get("CAPTURE")
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for number, batch in enumerate(perf.loader):
            if capture and number == int(capture):
                with simulated_device.DEVICE.capture():
                    one_step(model, optimizer, torch.ones(4, WIDTH))
            one_step(model, optimizer, batch["rows"])
        simulated_device.DEVICE.synchronize()
        perf.row()


def one_step(model, optimizer, rows):
    """Train a plain loop's step."""
    model(rows.to(simulated_device.PLACE))["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
    step_ended()


def transformers(config):
    """Train with the Trainer of Hugging Face."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = simulated_device.PLACE
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from perf_callbacks.transformers import PerfCallback

    class Waiting(TrainerCallback):
        def on_step_end(self, *_, **__):
            step_ended()

    arguments = TrainingArguments(
        output_dir=config.output_dir, per_device_train_batch_size=4, max_steps=STEPS, save_strategy="no",
        report_to="none", disable_tqdm=True, logging_steps=10, max_grad_norm=0, dataloader_pin_memory=False,
    )  # fmt: skip
    model = Model()
    optimizer = Optimizer(model.to(simulated_device.PLACE).parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    callbacks = [PerfCallback(config), Waiting()]
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Rows(), callbacks=callbacks, optimizers=(optimizer, schedule)
    )
    trainer.train()


def accelerate(config):
    """Train in a loop with Accelerate."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = simulated_device.PLACE
    from accelerate import Accelerator

    from perf_callbacks.accelerate import attach

    accelerator = Accelerator()
    attach(accelerator, config)
    model = Model().to(accelerator.device)  # `prepare` would make new parameters, which the optimizer doesn't know
    optimizer = Optimizer(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Rows(), batch_size=4))
    for batch in loader:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
        step_ended()
    accelerator.end_training()


def lightning(config):
    """Train with Lightning, which needs an accelerator class for each kind of device."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.strategies import SingleDeviceStrategy

    from perf_callbacks.lightning import PerfCallback

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _index):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return Optimizer(self.model.parameters(), lr=0.1)

    class Waiting(Callback):
        def on_train_batch_end(self, *_):
            step_ended()

    place = torch.device(simulated_device.PLACE)
    trainer = Trainer(
        default_root_dir=config.output_dir, strategy=SingleDeviceStrategy(place, _lightning_accelerator()),
        max_steps=STEPS, max_epochs=-1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[PerfCallback(config), Waiting()],
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Rows(), batch_size=4))


def _lightning_accelerator():
    from lightning.pytorch.accelerators import Accelerator

    class Simulated(Accelerator):
        def setup_device(self, device):
            pass

        def teardown(self):
            pass

        def get_device_stats(self, _device):
            return {}

        @staticmethod
        def parse_devices(devices):
            return devices

        @staticmethod
        def get_parallel_devices(_devices):
            return [torch.device(simulated_device.PLACE)]

        @staticmethod
        def auto_device_count():
            return 1

        @staticmethod
        def is_available():
            return True

        @staticmethod
        def name():
            return simulated_device.NAME

    return Simulated()


def main(integration, directory):
    """Run a fit, and print the journal's first and last record."""
    simulated_device.install()
    config = PerfConfig(output_dir=directory, measure_peak="off", peak_tflops="1")
    globals()[integration](config)
    run, summary = [records(directory, kind)[-1] for kind in (Run, Summary)]
    print()
    print(json.dumps({"run": asdict(run), "summary": asdict(summary)}, default=list))


if __name__ == "__main__":
    main(*sys.argv[1:])
