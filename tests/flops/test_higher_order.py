"""Operators without a schema: counted as others are, whoever follows the memory of the step."""

import pytest
import torch
from rows import each_row
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from perf_callbacks import PerfConfig
from perf_callbacks.flops.counting.counter import FlopCounter
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


LENGTH, BLOCK = 128, 32
MASKS = {
    "none": (lambda batch, head, query, key: query >= 0, None, 1.0),
    "causal": (lambda batch, head, query, key: query >= key, None, 1.0),  # counts in full, as in other kernels
    "two documents": (lambda batch, head, query, key: query // 64 == key // 64, None, 0.5),
    "a window": (lambda batch, head, query, key: (query >= key) & (query - key < BLOCK), None, 7 / 16),
    "a document per sample": (lambda batch, head, query, key: (query // 64 == key // 64) | (batch == 1), 2, 0.75),
}


def attended(mask, batches):
    """Count the FLOPs of flex attention with a mask. On a CPU, flex attention has no backward."""
    query = torch.randn(2, 2, LENGTH, 16)
    blocks = create_block_mask(mask, batches, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=BLOCK)
    with FlopCounter() as counter:
        flex_attention(query, query, query, block_mask=blocks)
    return counter


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@each_row("name", MASKS)
def test_blocks_that_a_mask_skips_do_not_count(name):
    mask, batches, share = MASKS[name]
    counter = attended(mask, batches)
    assert counter.work().by_phase == {"forward": 2 * 2 * (2 * 2 * LENGTH * LENGTH * 16) * share}
    assert not counter.observed.unknown


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_a_mask_of_unreadable_blocks_is_a_reason():
    with FakeTensorMode():
        counter = attended(MASKS["two documents"][0], None)
    assert counter.work().by_phase == {}
    assert counter.observed.unknown == {"flex_attention with a block mask on a device": 1}
    assert not counter.errors
