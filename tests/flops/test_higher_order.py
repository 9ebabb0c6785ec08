"""Operators without a schema: counted as others are, whoever follows the memory of the step."""

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen, self.trained = nn.Linear(32, 96).requires_grad_(False), nn.Linear(16, 16)

    def forward(self, rows):
        with torch.no_grad():
            heads = [part.view(len(rows), -1, 2, 16).transpose(1, 2) for part in self.frozen(rows).chunk(3, -1)]
            attended = flex_attention(*heads)
        return self.trained(attended)


def trained():
    model = Attention()
    optimizer = torch.optim.SGD(model.trained.parameters(), lr=1e-4)
    config = PerfConfig(journal=False, measure_peak="off", peak_tflops="1")
    with measure(model=model, optimizer=optimizer, loader=[torch.randn(2, 128, 32)] * 4, config=config) as perf:
        for rows in perf.loader:
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return perf.summary


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_is_counted():
    summary = trained()
    attention = 2 * 2 * 2 * (2 * 128 * 128 * 16)  # two products, batch and heads, without a gradient
    linear = 2 * (2 * 128) * 32 * 96 + 2 * 2 * (2 * 2 * 128) * 16 * 16  # a frozen one, and one with its gradient
    assert summary.flops.model_flops // summary.flops.steps == attention + linear
    assert not summary.flops.lower_bound
