"""Samples of whole fits: read from batches, or unknown where the batches don't show them."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from trainings import models

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

STEPS, WIDTH = 16, 8
MEAN, DEVIATION = torch.zeros(WIDTH), torch.ones(WIDTH)


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


class Normalized(nn.Module):
    """Takes constants of the data with each batch."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mean, deviation):
        return {"loss": self.inner((x - mean) / deviation).square().mean()}


def collate(rows):
    return {"x": torch.stack([row["x"] for row in rows]), "mean": MEAN, "deviation": DEVIATION}


def train(model, loader):
    """The summary of a plain loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with measure(model=model, optimizer=optimizer, loader=loader, config=PerfConfig(journal=False)) as perf:
        for batch in perf.loader:
            out = model(**batch)
            (out["loss"] if isinstance(out, dict) else out.square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return perf.summary


def test_token_ids_have_no_samples_where_a_layer_may_take_time_first():
    layers = {
        nn.LSTM(WIDTH, WIDTH): None,
        nn.GRUCell(WIDTH, WIDTH): None,
        nn.TransformerEncoderLayer(WIDTH, 2, 8): None,
        nn.MultiheadAttention(WIDTH, 2): None,
        nn.LSTM(WIDTH, WIDTH, batch_first=True): 12,
        nn.MultiheadAttention(WIDTH, 2, batch_first=True): 12,
        nn.Linear(WIDTH, WIDTH): 12,
    }
    batch = {"input_ids": torch.zeros(12, 4, dtype=torch.long)}
    summaries = {layer: train(Sequences(layer), [batch] * 4) for layer in layers}
    rates = {layer: summary.included_samples for layer, summary in summaries.items()}
    assert rates == {layer: rows and rows * summaries[layer].included_steps for layer, rows in layers.items()}


def test_constants_of_a_collate_function_have_no_vote_on_samples(tmp_path):
    rows = [{"x": torch.ones(WIDTH)} for _ in range(STEPS * 4)]
    loop = train(Normalized(), DataLoader(rows, batch_size=4, collate_fn=collate))
    arguments = models.training_arguments(tmp_path, max_steps=STEPS)
    arguments.remove_unused_columns = False
    ours = PerfCallback(PerfConfig(gc="off"))
    models.trainer(arguments, ours, model=Normalized(), train_dataset=rows, data_collator=collate).train()
    for summary in (loop, ours.summary):
        assert summary.included_samples == 4 * summary.included_steps > 0


def test_a_loader_of_single_rows_has_unknown_samples():
    rows = DataLoader([torch.ones(WIDTH)] * 6, batch_size=None)
    summary = train(Normalized(), [{"x": row, "mean": 0.0, "deviation": 1.0} for row in rows])
    assert summary.included_samples is None
