"""How much of what should have been counted was: by the weights that were seen to be multiplied."""

import pytest
import torch
from counted import gpt2, ids, loss_of, mamba
from flops.models import MIXTRAL, hugging, tokens
from flops.test_strange import ByNumpy
from torch import nn
from trainings.models import llama

from perf_callbacks.flops import register_flop_formula
from perf_callbacks.flops.count_records import counted
from perf_callbacks.flops.counting import formulas
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


@torch.library.custom_op("perf_callbacks_coverage::product", mutates_args=())
def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight.T


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, gradient):
    x, weight = ctx.saved_tensors
    return gradient @ weight, gradient.T @ x


product.register_autograd(_backward, setup_context=_save)


def linear():
    return nn.Linear(WIDE, WIDE, bias=False)


def batch():
    return torch.randn(4, WIDE, requires_grad=True)


def test_a_kernel_past_the_dispatcher_with_half_of_the_weights_leaves_half():
    record = count(nn.Sequential(linear(), Opaque()), batch())
    assert (record.coverage, record.lower_bound, record.uncounted) == (0.5, True, {})


def test_so_it_is_by_elements_and_not_by_weights():
    record = count(nn.Sequential(linear(), linear(), linear(), Opaque()), batch())
    assert (record.coverage, record.lower_bound) == (0.75, True)


def test_a_little_that_is_missing_makes_no_lower_bound():
    record = count(nn.Sequential(*[linear() for _ in range(99)], Opaque()), batch())
    assert (record.coverage, record.lower_bound) == (0.99, False)


def test_an_operation_of_ones_own_is_named_until_it_has_a_formula(monkeypatch):
    monkeypatch.setattr(formulas, "_registered", {})
    model = nn.Sequential(linear(), Opaque(torch.ops.perf_callbacks_coverage.product))
    record = count(model, batch())
    assert (record.uncounted, record.lower_bound) == ({"perf_callbacks_coverage::product": 1}, True)
    before = record.model_flops

    @register_flop_formula(torch.ops.perf_callbacks_coverage.product)
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


def test_weights_that_are_indexed_added_or_prepended_are_not_asked_for():
    assert count(Positions(), torch.ones(2, 8, dtype=torch.long)).coverage == 1.0


def test_a_model_without_weights_to_multiply_has_no_coverage():
    record = count(nn.LayerNorm(WIDE), batch())
    assert (record.coverage, record.lower_bound, record.model_flops) == (None, False, 0)


class Experts(nn.Module):
    """Only one of its experts has something to do."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(linear() for _ in range(4))

    def forward(self, x):
        return self.experts[1](x)


def test_experts_that_did_not_run_are_not_asked_for():
    assert count(Experts(), batch()).coverage == 1.0


def test_experts_held_in_one_weight_are_covered():
    record = count(hugging("MixtralForCausalLM", MIXTRAL), {"input_ids": tokens(), "labels": tokens()})
    assert (record.coverage, record.lower_bound) == (1.0, False)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_head_that_is_tied_to_the_embedding_is_one_weight(make, tied):
    model = make(tie_word_embeddings=tied)
    with FlopCounter() as counter:
        model(**ids(2, 8)).loss.backward()
    weights = counter.weights
    matrices = {id(one): one.numel() for name, one in model.named_parameters() if one.dim() > 1}
    picked = [model.get_input_embeddings().weight] if not tied else []
    positions = [one for name, one in model.named_parameters() if "wpe" in name]
    for one in (*picked, *positions):
        matrices.pop(id(one))
    assert weights.multiplied_elements() == sum(matrices.values())
    assert weights.coverage() == 1.0


@pytest.mark.parametrize("name", ["Mamba", "Mamba2"])
def test_state_space_models_are_no_lower_bounds(name):
    record = count(mamba(name), ids(2, 8))
    assert (record.lower_bound, record.uncounted, record.errors) == (False, {}, {})
    assert record.coverage >= 0.98


@pytest.mark.parametrize("make", [llama, gpt2, mamba])
def test_copies_in_another_number_format_stand_for_the_weights(make):
    record = count(make(), ids(2, 8), autocast=True)
    assert (record.coverage, record.lower_bound) == (1.0, False)
    assert max(record.by_dtype, key=record.by_dtype.get) == "bfloat16"


def test_lstms_and_convolutions_are_covered():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution, self.lstm = nn.Conv1d(WIDE, WIDE, 3, padding=1), nn.LSTM(WIDE, WIDE, batch_first=True)

        def forward(self, x):
            return self.lstm(self.convolution(x.mT).mT)[0]

    record = count(Both(), torch.randn(2, 6, WIDE))
    assert (record.coverage, record.lower_bound) == (1.0, False)
