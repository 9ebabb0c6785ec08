"""Tokens of batches without names: known from the counted step on, and of the steps before it."""

import warnings

import lightning
import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainings import models, runs

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.lightning import PerfCallback as LightningCallback
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

LENGTHS = (7, 12, 12, 5, 12, 12)


class Nano(nn.Module):
    """Embeds tokens and positions, as nanoGPT does; the loss comes with the targets."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(models.VOCABULARY, 8), nn.Embedding(16, 8)
        self.head = nn.Linear(8, models.VOCABULARY)

    def forward(self, idx, targets):
        hidden = self.tokens(idx) + self.positions(torch.arange(idx.shape[1]))
        logits = self.head(hidden)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), "logits": logits}


def pairs():
    """Targets first, a step further on, in the same memory; one batch is longer than the other."""
    for length in LENGTHS:
        memory = torch.randint(0, models.VOCABULARY, (4, length + 1))
        yield memory[:, 1:], memory[:, :-1]


class Ready(DataLoader):
    """Hands over batches that are made already."""

    def __init__(self):
        super().__init__([*pairs()], batch_size=None)


def in_a_loop(directory):
    model = Nano()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(directory), gc="off", peak_tflops="1")
    with measure(model=model, optimizer=optimizer, loader=Ready(), config=config) as perf:
        rows = []
        for targets, idx in perf.loader:
            model(idx, targets)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            rows.append(perf.row())  # the tape is read in each step
    return perf.summary, rows


def with_accelerate(directory):
    accelerator = Accelerator(cpu=True)
    perf = attach(accelerator, PerfConfig(output_dir=str(directory), gc="off", peak_tflops="1"))
    model = Nano()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), Ready())
    for targets, idx in loader:
        accelerator.backward(model(idx, targets)["loss"])
        optimizer.step()
        optimizer.zero_grad()
        assert perf.summary.failure is None  # the tape is read in each step
    accelerator.end_training()
    return perf.summary, None


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Nano()

    def training_step(self, batch, batch_idx):
        targets, idx = batch
        return self.model(idx, targets)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning_fit(directory, module, loaders, **options):
    ours = LightningCallback(PerfConfig(output_dir=str(directory), gc="off", peak_tflops="1"))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning.Trainer(max_epochs=1, callbacks=[ours], enable_model_summary=False, **quiet, **options).fit(
            module, loaders
        )
    return ours.summary


def with_lightning(directory):
    return lightning_fit(directory, Module(), Ready()), None


def with_transformers(directory):
    ours = PerfCallback(PerfConfig(gc="off", peak_tflops="1"))
    batches = iter([*pairs()])

    def collate(_):
        targets, idx = next(batches)
        return {"targets": targets, "idx": idx}

    arguments = models.training_arguments(directory, remove_unused_columns=False, max_steps=6, label_names=["targets"])
    trainer = models.trainer(arguments, ours, model=Nano(), train_dataset=models.Tokens(24), data_collator=collate)
    trainer.train()
    return ours.summary, [row for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize("fit", [in_a_loop, with_accelerate, with_lightning, with_transformers])
def test_a_batch_without_names_has_tokens_from_the_first_step_on(tmp_path, fit):
    summary, rows = fit(tmp_path)
    assert summary.steps == len(LENGTHS)
    assert summary.tokens == summary.total_tokens == 4 * sum(LENGTHS)
    assert summary.samples == 4 * len(LENGTHS)
    assert summary.included_tokens is not None
    if rows is not None:
        assert ["perf/tokens_per_second" in row for row in rows[2:]] == ["perf/step_time" in row for row in rows[2:]]
    assert [step["tokens"] for step in runs.steps(tmp_path)][2:] == [4 * length for length in LENGTHS[2:]]


class Several(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        parts = batch.values() if isinstance(batch, dict) else batch
        return sum(self.layer(x).square().mean() for x, _ in parts)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    "combine",
    [dict, lambda loaders: CombinedLoader([*loaders.values()], "max_size_cycle")],
    ids=["mapping", "combined"],
)
def test_samples_of_several_loaders_in_lightning_add_up(tmp_path, combine):
    data = TensorDataset(torch.ones(64, 3), torch.ones(64))
    loaders = {"a": DataLoader(data, 8), "b": DataLoader(data, 16)}
    summary = lightning_fit(tmp_path, Several(), combine(loaders), max_steps=4)
    assert (summary.steps, summary.samples) == (4, 4 * 24)
