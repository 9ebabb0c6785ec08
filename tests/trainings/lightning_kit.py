"""Lightning modules and trainers small enough for any test, of either import tree."""

import csv
import functools
import importlib
from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader

from trainings.models import WIDTH, Numbers

FRAMEWORKS = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


class Automatic:
    """As in automatic optimization. Some of its batches are skipped, with the rest of their epoch."""

    def __init__(self, optimizers=1, skip=()):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(optimizers)])
        self.skip = skip
        self.batches = 0

    def on_train_batch_start(self, batch, batch_idx):
        self.batches += 1
        return -1 if self.batches in self.skip else None

    def loss(self, batch):
        loss = self.net(batch).square().mean()
        self.log("loss", loss, batch_size=len(batch))
        return loss

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.net(batch).mean())

    def optimizers_and_schedulers(self):
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in self.net]
        return optimizers, [torch.optim.lr_scheduler.LambdaLR(one, lambda _: 1.0) for one in optimizers]

    def configure_optimizers(self):
        (optimizer,), (scheduler,) = self.optimizers_and_schedulers()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Manual(Automatic):
    """As in manual optimization, with two optimizers."""

    def __init__(self, optimizers=2, skip=()):
        super().__init__(optimizers, skip)
        self.automatic_optimization = False

    def configure_optimizers(self):
        return self.optimizers_and_schedulers()

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()


class Iterating(Automatic):
    """Fetches its batches itself."""

    def training_step(self, dataloader_iter):
        batch, _, _ = next(dataloader_iter)
        return self.loss(batch)


KINDS = (Automatic, Manual, Iterating)


@functools.cache
def tree(framework="lightning"):
    """What a test needs of one import tree, with the callback that belongs to it."""
    pl = importlib.import_module(FRAMEWORKS[framework])
    callbacks = importlib.import_module(f"{FRAMEWORKS[framework]}.callbacks")
    loggers = importlib.import_module(f"{FRAMEWORKS[framework]}.loggers")
    modules = {kind.__name__: type(kind.__name__, (kind, pl.LightningModule), {}) for kind in KINDS}
    return SimpleNamespace(
        pl=pl,
        callbacks=callbacks,
        Callback=callbacks.Callback,
        PerfCallback=importlib.import_module(f"perf_callbacks.{framework}").PerfCallback,
        CSVLogger=loggers.CSVLogger,
        TensorBoardLogger=loggers.TensorBoardLogger,
        **modules,
    )


def loader(rows=24, batch_size=4, **options):
    return DataLoader(Numbers(rows), batch_size=batch_size, **options)


def trainer(directory, *callbacks, of="lightning", **options):
    """A short, quiet run on the CPU."""
    quiet = {
        "default_root_dir": str(directory),
        "max_steps": 6,
        "max_epochs": -1,
        "accelerator": "cpu",
        "devices": 1,
        "log_every_n_steps": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    return tree(of).pl.Trainer(callbacks=list(callbacks), **quiet | options)


def logged(directory):
    """The lines that a `CSVLogger` wrote, without what is empty in them."""
    (path,) = directory.rglob("metrics.csv")
    with path.open(encoding="utf-8") as file:
        return [{key: float(value) for key, value in line.items() if value} for line in csv.DictReader(file)]


def points(directory, tag):
    """The steps at which TensorBoard has a value."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (path,) = directory.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(path))
    events.Reload()
    return [event.step for event in events.Scalars(tag)]
