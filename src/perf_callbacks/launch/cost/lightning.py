"""Short training with the Lightning `Trainer`, with or without the callback."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.launch.cost import network
from perf_callbacks.launch.cost.turns import STEPS, Stopwatch
from perf_callbacks.lightning import PerfCallback


class _Steps(Callback):
    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self._stopwatch.step_ended()


class _Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = network.Classifier()

    def training_step(self, batch: dict[str, torch.Tensor], *_: Any) -> torch.Tensor:
        return network.loss_of(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return network.optimizer_of(self)


def train(directory: str, stopwatch: Stopwatch, *, armed: bool) -> None:
    """Train for `STEPS` steps with the Lightning `Trainer`. If `armed` is True, the callback measures the training."""
    callbacks: list[Callback] = [PerfCallback(PerfConfig(output_dir=directory))] if armed else []
    trainer = Trainer(
        max_steps=STEPS,
        devices=1,
        default_root_dir=directory,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, _Steps(stopwatch)],
    )
    trainer.fit(_Module(), DataLoader(network.Rows(), batch_size=network.BATCH_SIZE))
