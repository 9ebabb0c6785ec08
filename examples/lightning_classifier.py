"""Train a small classifier with the Lightning Trainer and validate each epoch, on the device of this machine."""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from perf_callbacks.lightning import PerfCallback


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    def loss(self, batch, name):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log(name, loss)
        return loss

    def training_step(self, batch):
        return self.loss(batch, "loss")

    def validation_step(self, batch):
        return self.loss(batch, "val_loss")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = TensorDataset(torch.randn(2048, 64), torch.randint(0, 10, (2048,)))
trainer = Trainer(
    max_epochs=3,
    log_every_n_steps=16,
    logger=CSVLogger("out/lightning"),
    callbacks=[PerfCallback()],
)
trainer.fit(Classifier(), DataLoader(data, batch_size=32, shuffle=True), DataLoader(data, batch_size=256))
