"""How much of what should have been counted was: by the weights that were seen to be multiplied."""

import pytest
import torch
from counted import gpt2, ids, loss_of, mamba
from flops.model_kinds import labelled
from flops.models import MIXTRAL, hugging
from flops.test_strange import ByNumpy, custom_operation
from rows import each_row
from torch import nn
from trainings.models import llama

from perf_callbacks.flops import register_flop_formula
from perf_callbacks.flops.count_records import counted
from perf_callbacks.flops.counting.counter import FlopCounter

WIDE = 8


def count(model, batch, *, autocast=False):
    """What the journal says of a forward and a backward."""
    with FlopCounter() as counter, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss_of(model, batch).backward()
    return counted(counter, 2, None)


class Opaque(nn.Module):
    """A layer by a kernel that torch doesn't see."""

    def __init__(self, multiply=ByNumpy.apply):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDE, WIDE))
        self.multiply = multiply

    def forward(self, x):
        return self.multiply(x, self.weight)


def linear():
    return nn.Linear(WIDE, WIDE, bias=False)


def batch():
    return torch.randn(4, WIDE, requires_grad=True)


@each_row(("layers", "coverage", "lower_bound"), [(1, 0.5, True), (3, 0.75, True), (99, 0.99, False)])
def test_coverage_is_the_share_of_the_elements_of_weights(layers, coverage, lower_bound):
    """A kernel past the dispatcher multiplies one weight."""
    record = count(nn.Sequential(*[linear() for _ in range(layers)], Opaque()), batch())
    assert (record.coverage, record.lower_bound, record.uncounted) == (coverage, lower_bound, {})


def test_a_custom_operation_is_named_until_it_has_a_formula():
    model = nn.Sequential(linear(), Opaque(custom_operation("perf_callbacks_coverage")))
    record = count(model, batch())
    assert (record.uncounted, record.lower_bound) == ({"perf_callbacks_coverage::linear": 1}, True)
    before = record.model_flops

    @register_flop_formula(torch.ops.perf_callbacks_coverage.linear)
    def _product(x, weight, *, out_val):
        return 2 * x.numel() * weight.shape[0]

    record = count(model, batch())
    assert (record.uncounted, record.lower_bound, record.coverage) == ({}, False, 1.0)
    assert record.model_flops == before + 2 * 4 * WIDE * WIDE


class Positions(nn.Module):
    """Picks from embeddings, adds positions, scales by a matrix element by element, puts a token in front."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, WIDE), nn.Linear(WIDE, 64)
        self.positions = nn.Parameter(torch.randn(1, 8, WIDE))
        self.scale = nn.Parameter(torch.randn(8, WIDE))
        self.first = nn.Parameter(torch.randn(1, 1, WIDE))

    def forward(self, x):
        y = (self.embedding(x) + self.positions) * self.scale
        return self.head(torch.cat([self.first.expand(len(x), -1, -1), y], 1))


class Choosing(nn.Module):
    """Only one of its experts has something to do."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(linear() for _ in range(4))

    def forward(self, x):
        return self.experts[1](x)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.lstm = nn.Conv1d(WIDE, WIDE, 3, padding=1), nn.LSTM(WIDE, WIDE, batch_first=True)

    def forward(self, x):
        return self.lstm(self.convolution(x.mT).mT)[0]


COVERED = {
    "indexed, added or prepended": (Positions, lambda: torch.ones(2, 8, dtype=torch.long), 1.0),
    "no weights to multiply": (lambda: nn.LayerNorm(WIDE), batch, None),
    "experts that did not run": (Choosing, batch, 1.0),
    "experts in one weight": (lambda: hugging("MixtralForCausalLM", MIXTRAL), labelled, 1.0),
    "an LSTM and a convolution": (Both, lambda: torch.randn(2, 6, WIDE), 1.0),
    "a state space model": (mamba, lambda: ids(2, 8), pytest.approx(1.0, abs=0.02)),
}


@each_row("name", COVERED)
def test_a_model_that_torch_multiplies_is_no_lower_bound(name):
    make, batch, coverage = COVERED[name]
    record = count(make(), batch())
    assert (record.coverage, record.lower_bound, record.uncounted, record.errors) == (coverage, False, {}, {})


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_head_tied_to_the_embedding_is_a_single_weight(make, tied):
    model = make(tie_word_embeddings=tied)
    with FlopCounter() as counter:
        model(**ids(2, 8)).loss.backward()
    weights = counter.weights
    matrices = {id(weight): weight.numel() for weight in model.parameters() if weight.dim() > 1}
    picked = [model.get_input_embeddings().weight] if not tied else []
    positions = [weight for name, weight in model.named_parameters() if "wpe" in name]
    for weight in (*picked, *positions):
        matrices.pop(id(weight))
    assert weights.multiplied_elements() == sum(matrices.values())
    assert weights.coverage() == 1.0


@pytest.mark.parametrize("make", [llama, gpt2, mamba])
def test_copies_in_another_number_format_stand_for_the_weights(make):
    record = count(make(), ids(2, 8), autocast=True)
    assert (record.coverage, record.lower_bound) == (1.0, False)
    assert max(record.by_dtype, key=record.by_dtype.get) == "bfloat16"
