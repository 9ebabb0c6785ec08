"""Laws of the calculator, for whatever transformer."""

from convention_steps import step_flops
from hypothesis import given, strategies as st

from perf_callbacks.flops.calculator.architecture import Architecture
from perf_callbacks.flops.calculator.conventions import CONVENTIONS

SIZES = st.integers(1, 200)
NAMES = st.sampled_from([*CONVENTIONS])
OPTIONS = st.fixed_dictionaries(
    {
        "convention": NAMES,
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "trainable": st.sampled_from(["all", "lora"]),
        "causal": st.sampled_from(["full", "half"]),
    }
)


@st.composite
def architectures(draw):
    kv_heads, group, experts = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(0, 8))
    return Architecture(
        layers=draw(SIZES),
        hidden=draw(SIZES),
        heads=kv_heads * group,
        head_dim=draw(SIZES),
        kv_heads=kv_heads,
        ffn=draw(st.none() | SIZES),
        gated=draw(st.booleans()),
        experts=experts,
        active_experts=draw(st.integers(1, experts)) if experts else 0,
        vocab=draw(SIZES),
        tied=draw(st.booleans()),
        positions=draw(st.integers(0, 200)),
    )


@given(architectures(), SIZES, SIZES, st.integers(1, 9), OPTIONS)
def test_flops_are_linear_in_the_batch(model, batch, seq, times, options):
    once, more = (step_flops(model, size, seq, **options) for size in (batch, batch * times))
    assert more.model == once.model * times
    assert more.hardware == (None if once.hardware is None else once.hardware * times)


@given(architectures(), SIZES, SIZES, OPTIONS)
def test_nothing_is_done_less_often_than_the_model_asks_for(model, batch, seq, options):
    flops = step_flops(model, batch, seq, **options)
    assert flops.hardware is None or flops.hardware >= flops.model > 0
    if options["recompute"] == "none":
        assert flops.hardware == flops.model


@given(architectures(), SIZES, SIZES, OPTIONS)
def test_adapters_never_cost_more_than_all_weights(model, batch, seq, options):
    everything, lora = (step_flops(model, batch, seq, **options | {"trainable": kind}) for kind in ("all", "lora"))
    assert lora.model < everything.model < 2 * lora.model


@given(architectures(), SIZES, SIZES, OPTIONS)
def test_a_longer_sequence_costs_its_length_and_the_square_of_it(model, batch, seq, options):
    once, twice, thrice = (step_flops(model, batch, size, **options).model for size in (seq, 2 * seq, 3 * seq))
    assert thrice - 3 * twice + 3 * once == 0


@given(architectures(), SIZES, SIZES)
def test_where_no_parameters_are_given_torchtitan_counts_as_we_do(model, batch, seq):
    assert step_flops(model, batch, seq, convention="torchtitan").model == step_flops(model, batch, seq).model


@given(st.integers(1, 10**12), SIZES, SIZES, NAMES)
def test_a_model_of_known_size_alone_is_counted_by_6n_alone(params, batch, seq, name):
    flops = step_flops(Architecture(params=params), batch, seq, convention=name)
    assert flops.model == (6 * params * batch * seq if name == "6n" else None)
