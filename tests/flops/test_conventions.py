"""Formulas, written out once more by hand."""

import pytest
from convention_steps import step_flops

from perf_callbacks import ConfigError
from perf_callbacks.flops.calculator.architecture import Architecture
from perf_callbacks.flops.calculator.conventions import ConventionWork, foundry, matmul, palm

GPT3 = Architecture(layers=96, hidden=12288, heads=96, vocab=51200)
MISTRAL = Architecture(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=True, vocab=32000)
MIXTRAL = Architecture(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn=14336,
    gated=True,
    experts=8,
    active_experts=2,
    vocab=32000,
)


def ratio(name, model=GPT3, *, batch=1, seq=2048, **options):
    """Hardware FLOPs over what formulas of the Megatron papers have in front of their brackets."""
    flops = step_flops(model, batch, seq, convention=name, **options).hardware
    return flops / (batch * seq * model.layers * model.hidden**2)


def test_a_layer_of_gpt_costs_24_b_s_h2_and_4_b_s2_h():
    forward = matmul(Architecture(layers=1, hidden=4096, vocab=1), ConventionWork(batch=1, seq=2048))
    assert forward.layers + forward.attention == 24 * 2048 * 4096**2 + 4 * 2048**2 * 4096 == 893_353_197_568


@pytest.mark.parametrize("name", ["megatron-eq3", "korthikanti", "korthikanti-exact"])
def test_the_equations_of_the_megatron_papers_hold(name):
    s, h, layers, v = 2048, 12288, 96, 51200
    assert ratio(name) == pytest.approx(72 * (1 + s / (6 * h) + v / (12 * h * layers)))
    assert ratio(name, recompute="full") == pytest.approx(96 * (1 + s / (6 * h) + v / (16 * h * layers)))


@pytest.mark.parametrize(("name", "share"), [("korthikanti", 3), ("korthikanti-exact", 4.5)])
def test_selective_recomputation_counts_attention_as_published(name, share):
    s, h, layers, v = 2048, 12288, 96, 51200
    assert ratio(name, recompute="selective") == pytest.approx(72 * (1 + s / (share * h) + v / (12 * h * layers)))


def test_grouped_queries_a_gated_mlp_and_the_head_are_counted_as_they_are():
    h, tokens = 4096, 3 * 512
    layer = 2 * h * h + 2 * h * 8 * 128 + 3 * h * 14336
    forward = 2 * tokens * (32 * layer + h * 32000) + 4 * tokens * 512 * h * 32
    assert step_flops(MISTRAL, 3, 512).model == 3 * forward


def test_active_experts_and_their_router_are_counted():
    h = 4096
    dense, sparse = (step_flops(model, 1, 512).model for model in (MISTRAL, MIXTRAL))
    assert sparse - dense == 6 * 512 * 32 * (3 * h * 14336 + h * 8)


def test_conventions_by_parameters_count_active_experts():
    assert MIXTRAL.parameters - MIXTRAL.idle_parameters == pytest.approx(12.88e9, rel=0.001)
    assert step_flops(MIXTRAL, 1, 1, convention="6n").model == 6 * (MIXTRAL.parameters - MIXTRAL.idle_parameters)
    given = Architecture(
        params=46_702_792_704, layers=32, hidden=4096, ffn=14336, gated=True, experts=8, active_experts=2
    )
    assert step_flops(given, 1, 1, convention="6n").model == pytest.approx(6 * 12.88e9, rel=0.001)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (MISTRAL, 7_241_732_096),
        (MIXTRAL, 46_702_792_704),
        (Architecture(layers=12, hidden=768, heads=12, vocab=50257, positions=1024, tied=True), 124_439_808),
    ],
)
def test_the_matrices_are_nearly_all_the_parameters(model, parameters):
    assert model.parameters == pytest.approx(parameters, rel=0.001)


def test_the_embedding_is_looked_up_unless_it_is_the_head_too():
    words = {"layers": 12, "hidden": 768, "heads": 12, "vocab": 50257, "positions": 1024}
    tied, untied = Architecture(**words, tied=True), Architecture(**words)
    ours = step_flops(tied, 1, 1024).model
    for model in (tied, untied):
        assert step_flops(model, 1, 1024).model == step_flops(model, 1, 1024, convention="torchtitan").model == ours
        assert step_flops(model, 1, 1024, convention="palm").model > ours
    assert step_flops(tied, 1, 1024, convention="nanogpt").model == ours
    assert step_flops(untied, 1, 1024, convention="nanogpt").model - ours == 6 * 1024 * 768 * 50257


def test_a_head_need_not_be_as_wide_as_hidden_over_heads():
    model = Architecture(layers=118, hidden=18432, heads=48, head_dim=256, params=540_350_000_000)
    work = ConventionWork(batch=1, seq=2048)
    assert palm(model, work).attention == 4 * 118 * 48 * 256 * 2048**2
    assert foundry(model, work).attention == 4 * 118 * 18432 * 2048**2


def test_adapters_leave_attention_as_it_is():
    work = ConventionWork(batch=1, seq=2048)
    forward = matmul(MISTRAL, work)
    lora = step_flops(MISTRAL, 1, 2048, trainable="lora").model
    assert lora == 2 * (forward.layers + forward.head) + 3 * forward.attention


@pytest.mark.parametrize(("recompute", "layers", "attention"), [("none", 0, 0), ("selective", 0, 1), ("full", 1, 1)])
def test_recomputation_is_a_forward_without_the_head(recompute, layers, attention):
    forward = matmul(MISTRAL, ConventionWork(batch=1, seq=2048))
    flops = step_flops(MISTRAL, 1, 2048, recompute=recompute)
    assert flops.hardware - flops.model == layers * forward.layers + attention * forward.attention


IMPOSSIBLE = (
    {"layers": 0},
    {"layers": 10**19},
    {"positions": -1},
    {"experts": 8},
    {"experts": 8, "active_experts": 9},
    {"active_experts": 1},
    {"heads": 32, "kv_heads": 5},
    {"heads": 5, "hidden": 32},
)


def test_dimensions_that_make_no_sense_are_refused():
    for words in IMPOSSIBLE:
        with pytest.raises(ConfigError, match="the model: got sizes that don't fit"):
            Architecture(**words)
