"""Samples and tokens of whole fits: read from batches and look-ups, or unknown where they don't show them."""

import lightning
import pytest
import torch
from counted import fit
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainings import lightning_kit, models, runs

from perf_callbacks import PerfConfig
from perf_callbacks.lightning import PerfCallback

WIDTH = 8
MEAN, DEVIATION = torch.zeros(WIDTH), torch.ones(WIDTH)
LENGTHS = (7, 12, 12, 5, 12, 12)


class Sequences(nn.Module):
    """Embeds token ids, and hands them to a layer."""

    def __init__(self, layer):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(16, WIDTH), layer

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        if isinstance(self.layer, nn.MultiheadAttention):
            return self.layer(x, x, x)[0]
        out = torch.stack([self.layer(step) for step in x]) if isinstance(self.layer, nn.GRUCell) else self.layer(x)
        return out[0] if isinstance(out, tuple) else out


def test_token_ids_have_no_samples_where_a_layer_may_take_time_first(tmp_path):
    layers = {
        nn.LSTM(WIDTH, WIDTH): None,
        nn.GRUCell(WIDTH, WIDTH): None,
        nn.TransformerEncoderLayer(WIDTH, 2, 8): None,
        nn.MultiheadAttention(WIDTH, 2): None,
        nn.LSTM(WIDTH, WIDTH, batch_first=True): 12,
        nn.MultiheadAttention(WIDTH, 2, batch_first=True): 12,
        nn.Linear(WIDTH, WIDTH): 12,
    }
    batches = [{"input_ids": torch.zeros(12, 4, dtype=torch.long)}] * 4
    summaries = {layer: fit(tmp_path, Sequences(layer), batches).summary for layer in layers}
    rates = {layer: summary.included_samples for layer, summary in summaries.items()}
    assert rates == {layer: rows and rows * summaries[layer].included_steps for layer, rows in layers.items()}


class Normalized(nn.Linear):
    """Takes constants of the data with each batch."""

    def forward(self, x, mean, deviation):
        return super().forward((x - mean) / deviation)


def collate(rows):
    return {"x": torch.stack(rows), "mean": MEAN, "deviation": DEVIATION}


def test_constants_of_a_collate_function_have_no_vote_on_samples(tmp_path):
    loader = DataLoader([torch.ones(WIDTH)] * 64, batch_size=4, collate_fn=collate)
    summary = fit(tmp_path, Normalized(WIDTH, WIDTH), loader).summary
    assert summary.included_samples == 4 * summary.included_steps > 0


def test_a_loader_of_single_rows_has_unknown_samples(tmp_path):
    rows = DataLoader([torch.ones(WIDTH)] * 6, batch_size=None)
    assert fit(tmp_path, nn.Linear(WIDTH, WIDTH), rows).summary.included_samples is None


class Nano(nn.Module):
    """Embeds tokens and positions, as nanoGPT does."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(models.VOCABULARY, 8), nn.Embedding(16, 8)
        self.head = nn.Linear(8, models.VOCABULARY)

    def forward(self, idx):
        return self.head(self.tokens(idx) + self.positions(torch.arange(idx.shape[1])))


def pairs():
    """Targets first, a step further on, in the same memory; one batch is longer than the other."""
    for length in LENGTHS:
        memory = torch.randint(0, models.VOCABULARY, (4, length + 1))
        yield memory[:, 1:], memory[:, :-1]


@pytest.mark.parametrize("rows", [None, []], ids=["", "read in each step"])
def test_a_batch_without_names_has_tokens_from_the_first_step_on(tmp_path, rows):
    model = Nano()

    def step(_, batch):
        targets, idx = batch
        nn.functional.cross_entropy(model(idx).flatten(0, 1), targets.flatten()).backward()

    loader = DataLoader([*pairs()], batch_size=None)
    summary = fit(tmp_path, model, loader, step, rows=rows, peak_tflops="1").summary
    assert summary.steps == len(LENGTHS)
    assert summary.tokens == summary.total_tokens == 4 * sum(LENGTHS)
    assert summary.samples == 4 * len(LENGTHS)
    assert summary.included_tokens is not None
    for row in rows[2:] if rows else ():
        assert ("perf/tokens_per_second" in row) == ("perf/step_time" in row)
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


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")
@pytest.mark.parametrize(
    "combine",
    [dict, lambda loaders: CombinedLoader([*loaders.values()], "max_size_cycle")],
    ids=["mapping", "combined"],
)
def test_samples_of_several_loaders_in_lightning_add_up(tmp_path, combine):
    data = TensorDataset(torch.ones(64, 3), torch.ones(64))
    loaders = {"a": DataLoader(data, 8), "b": DataLoader(data, 16)}
    ours = PerfCallback(PerfConfig(output_dir=str(tmp_path), gc="off", peak_tflops="1"))
    lightning_kit.trainer(tmp_path, ours, max_steps=4).fit(Several(), combine(loaders))
    assert (ours.summary.steps, ours.summary.samples) == (4, 4 * 24)
