"""Operation by operation: what each costs forward, and backward, by hand."""

from functools import partial

import pytest
import torch
from rows import each_row
from torch import nn
from torch.nn import functional
from torch.utils import flop_counter

from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.counting.formulas import formula, register_flop_formula

B, M, K, N = 3, 4, 5, 6
PRODUCT = 2 * M * K * N


def random(*sizes):
    return torch.randn(*sizes, requires_grad=True)


def sizes(*shapes):
    return lambda: [random(*shape) for shape in shapes]


def recurrent(kind):
    return kind(K, N, batch_first=True), random(B, M, K)


def attention(queries=2, keys=M, wide=8, **options):
    """An operation on queries of `queries` heads, with two heads of keys and values."""
    kernel = partial(functional.scaled_dot_product_attention, **options)
    scores, mixed = 2 * B * queries * M * keys * 8, 2 * B * queries * M * keys * wide
    return kernel, sizes((B, queries, M, 8), (B, 2, keys, 8), (B, 2, keys, wide)), scores + mixed, 2


# what runs, on what, what it costs forward, how many times that backward: once for each gradient that is a product
OPERATIONS = {
    "mm": (torch.mm, sizes((M, K), (K, N)), PRODUCT, 2),
    "addmm": (torch.addmm, sizes((N,), (M, K), (K, N)), PRODUCT, 2),
    "bmm": (torch.bmm, sizes((B, M, K), (B, K, N)), B * PRODUCT, 2),
    "baddbmm": (torch.baddbmm, sizes((B, M, N), (B, M, K), (B, K, N)), B * PRODUCT, 2),
    "addbmm": (torch.addbmm, sizes((M, N), (B, M, K), (B, K, N)), B * PRODUCT, 2),
    # the gradient of the matrix is element by element
    "matrix by vector": (torch.mv, sizes((M, K), (K,)), 2 * M * K, 1),
    "row by column": (torch.dot, sizes((K,), (K,)), 2 * K, 0),
    "addmv": (torch.addmv, sizes((M,), (M, K), (K,)), 2 * M * K, 1),
    "a product that is broadcast": (torch.matmul, sizes((B, 1, M, K), (2, K, N)), 2 * B * PRODUCT, 2),
    "einsum": (partial(torch.einsum, "bmk,bnk->bmn"), sizes((B, M, K), (B, N, K)), B * PRODUCT, 2),
    "tensordot": (partial(torch.tensordot, dims=1), sizes((B, M, K), (K, N)), B * PRODUCT, 2),
    "chain": (lambda a, b, c: torch.linalg.multi_dot([a, b, c]), sizes((M, K), (K, N), (N, 1)), 2 * (K * N + M * K), 2),
    "linear": (functional.linear, sizes((B, M, K), (N, K), (N,)), B * PRODUCT, 2),
    "convolution of a line": (functional.conv1d, sizes((B, 4, 9), (6, 4, 3)), 2 * B * 7 * 6 * 4 * 3, 2),
    "convolution in groups": (
        partial(functional.conv2d, groups=2),
        sizes((B, 4, 9, 9), (6, 2, 3, 3)),
        2 * B * 49 * 6 * 18,
        2,
    ),
    "transposed in groups": (
        partial(functional.conv_transpose2d, stride=2, groups=2),
        sizes((B, 4, 5, 5), (4, 3, 3, 3)),
        2 * B * 25 * 4 * 27,
        2,
    ),
    "convolution of a volume": (functional.conv3d, sizes((B, 2, 5, 5, 5), (3, 2, 2, 2, 2)), 2 * B * 64 * 3 * 16, 2),
    "attention of its own": attention(),
    "causal attention, in full": attention(is_causal=True),
    "attention to others": attention(keys=K),
    "attention of more queries than keys": attention(queries=4, keys=K, enable_gqa=True),
    "attention to values of another width": attention(keys=K, wide=4),
    "attention with dropout": attention(dropout_p=0.1),
    "a product added in place": (lambda out, a, b: (out * 1).addmm_(a, b), sizes((M, N), (M, K), (K, N)), PRODUCT, 2),
    "products added in place": (
        lambda out, a, b: (out * 1).baddbmm_(a, b),
        sizes((B, M, N), (B, M, K), (B, K, N)),
        B * PRODUCT,
        2,
    ),
    "a product by a vector, added in place": (
        lambda out, a, b: (out * 1).addmv_(a, b),
        sizes((M,), (M, K), (K,)),
        2 * M * K,
        1,
    ),
    "convolution of times, batches, channels": (
        torch.conv_tbc,
        sizes((9, B, 4), (3, 4, 6), (6,)),
        2 * B * 7 * 3 * 4 * 6,
        2,
    ),
    # the places of the kernel that lie on the padding are left out
    "convolution of padded times": (
        partial(torch.conv_tbc, pad=1),
        sizes((9, B, 4), (3, 4, 6), (6,)),
        2 * B * (8 + 9 + 8) * 4 * 6,
        2,
    ),
    "LSTM": (lambda model, x: model(x)[0], lambda: recurrent(nn.LSTM), 2 * B * M * 4 * N * (K + N), 2),
    "LSTM both ways": (
        lambda model, x: model(x)[0],
        lambda: recurrent(partial(nn.LSTM, bidirectional=True)),
        2 * 2 * B * M * 4 * N * (K + N),
        2,
    ),
}


@each_row("name", OPERATIONS)
def test_an_operation_costs_the_same_by_hand(name):
    run, make, forward, gradients = OPERATIONS[name]
    operands = make()
    with FlopCounter() as counter:
        run(*operands).square().sum().backward()
    work = counter.work()
    assert work.by_phase["forward"] == forward
    assert work.model_flops == (1 + gradients) * forward
    assert work.hardware_flops == work.model_flops + work.by_phase.get("attention_recompute", 0)
    assert not counter.errors
    assert not counter.observed.unknown
    for grad in (torch.no_grad, torch.inference_mode):
        with grad(), FlopCounter() as counter:
            run(*operands)
        assert counter.work().by_phase == {"forward": forward}


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_other_recurrent_layers_are_products_at_each_time(kind):
    gates = {nn.GRU: 3, nn.RNN: 1}[kind]
    model, x = recurrent(kind)
    with FlopCounter() as counter:
        model(x)[0].square().sum().backward()
    step = 2 * B * gates * N
    # the state before the first time is no one's output: it needs no gradient
    assert counter.work().by_phase == {"forward": M * step * (K + N), "backward": M * step * (2 * K + 2 * N) - step * N}


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_keys_that_heads_share_are_counted_by_any_version_of_torch(monkeypatch, kernel):
    def refuse(*_):
        raise AssertionError

    for older in ("sdpa_flop_count", "sdpa_backward_flop_count"):
        monkeypatch.setattr(flop_counter, older, refuse)
    query, key = torch.empty(B, 4, M, 8), torch.empty(B, 2, M, 8)
    forward, backward = [
        formula(getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention{suffix}"))
        for suffix in ("", "_backward")
    ]
    scores = 2 * B * 4 * M * M * 8
    assert forward.flops(query, key, key, out_val=None) == 2 * scores
    assert backward.flops(query, query, key, key, out_val=None) == 5 * scores


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="since torch 2.8")
@pytest.mark.parametrize("version", [1, 2])
def test_an_element_of_four_bit_numbers_counts_twice(version):
    rows, inner, columns, scales = 256, 1024, 512, torch.float8_e4m3fn
    a, b = [
        torch.empty(size, inner // 2, dtype=torch.uint8, device="meta").view(torch.float4_e2m1fn_x2)
        for size in (rows, columns)
    ]
    of_a, of_b = [torch.empty(size * inner // 16, dtype=scales, device="meta") for size in (rows, columns)]
    with FlopCounter() as counter:
        if version == 1:
            torch._scaled_mm(a, b.t(), of_a, of_b, out_dtype=torch.bfloat16)
        elif hasattr(torch.ops.aten, "_scaled_mm_v2"):
            blocks = functional.ScalingType.BlockWise1x16.value
            of = [of_a], [blocks], [1], [of_b], [blocks], [1]  # swizzled, as cuBLAS wants it
            torch.ops.aten._scaled_mm_v2(a, b.t(), *of, None, torch.bfloat16)
        else:
            pytest.skip("this version of torch has no such operation")
    assert counter.work().by_dtype == {"float4_e2m1fn_x2": 2 * rows * inner * columns}


@each_row(
    ("run", "shapes", "flops"),
    [
        (torch.mm, [(M, K), (K, N)], PRODUCT),
        (torch.addmm, [(M, N), (M, K), (K, N)], PRODUCT),
        (torch.bmm, [(B, M, K), (B, K, N)], B * PRODUCT),
        (torch.mv, [(M, K), (K,)], 2 * M * K),
        (functional.linear, [(B, M, K), (N, K)], B * PRODUCT),
    ],
)
def test_complex_numbers_take_four_multiplications_and_four_additions(run, shapes, flops):
    """The gradients of complex operands are as many complex products; those of a vector's matrix are none."""
    operands = [torch.randn(*shape, dtype=torch.complex64, requires_grad=True) for shape in shapes]
    with FlopCounter() as counter:
        run(*operands).abs().sum().backward()
    work = counter.work()
    assert work.by_phase == {"forward": 4 * flops, "backward": 4 * flops * (1 if run is torch.mv else 2)}
    assert work.by_dtype == {"float32": work.model_flops}
    assert counter.weights.coverage() is None


def test_a_complex_convolution_is_the_three_real_ones_of_torch():
    x, weight = [torch.randn(*shape, dtype=torch.complex64) for shape in ((B, 4, 9), (6, 4, 3))]
    with FlopCounter() as counter:
        functional.conv1d(x, weight)
    assert counter.work().by_phase == {"forward": 3 * 2 * B * 7 * 6 * 4 * 3}


@torch.library.custom_op("perf_callbacks_operations::turn", mutates_args=())
def turn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.complex(a.real @ b, a.imag @ b)


@register_flop_formula(torch.ops.perf_callbacks_operations.turn)
def turn_flops(a, b, **_):
    return 2 * a.shape[0] * a.shape[1] * b.shape[1]


def test_a_complex_by_a_real_number_takes_half_of_that():
    with FlopCounter() as counter:
        turn(torch.ones(M, K, dtype=torch.complex128), torch.ones(K, N, dtype=torch.float64))
    assert counter.work().by_dtype == {"float64": 2 * PRODUCT}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
def test_integers_take_no_floating_point_operation(dtype):
    a, b = torch.ones(32, 32).to(dtype), torch.ones(32, 32).to(dtype)
    with FlopCounter() as counter:
        a @ b
        if dtype is torch.int8:
            torch._int_mm(a, b)
    assert counter.work().hardware_flops == 0
    assert (dict(counter.observed.unknown), dict(counter.errors)) == ({}, {})


def per_sample_gradients(model, x):
    """By `torch.func`, as in differential privacy."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters, row):
        return torch.func.functional_call(model, parameters, (row[None],)).square().sum()

    torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)


def test_gradients_of_each_sample_are_counted_and_no_trouble():
    model = nn.Sequential(nn.Linear(K, N), nn.Tanh(), nn.Linear(N, 3))
    with FlopCounter() as counter:
        per_sample_gradients(model, torch.randn(B, K))
    first, second = 2 * B * K * N, 2 * B * N * 3
    assert counter.work().by_phase == {"forward": first + second, "backward": first + 2 * second}
    assert (dict(counter.errors), dict(counter.observed.unknown)) == ({}, {})
    assert counter.weights.coverage() == 1.0


SCORES = 2 * B * 2 * M * M * 8
# what is called, and how much of its forward and backward falls on pairs that a causal mask hides
CAUSAL = {
    "causal": ({"is_causal": True}, M, (2 + 5) * SCORES, (2 + 5) * 2 * B * 2 * 8 * sum(range(M))),
    "without a mask": ({}, M, 0, 0),
    "a mask as a tensor": ({"attn_mask": torch.ones(M, M).tril().bool()}, M, 0, 0),
    "more keys than queries": ({"is_causal": True}, M + 1, (2 + 5) * SCORES * (M + 1) // M, 0),
    "taken apart": ({"is_causal": True, "dropout_p": 0.1}, M, 0, 0),
}


@each_row("name", CAUSAL)
def test_masked_flops_are_of_pairs_that_a_kernel_was_told_to_skip(name):
    options, keys, causal, masked = CAUSAL[name]
    query, key, value = random(B, 2, M, 8), random(B, 2, keys, 8), random(B, 2, keys, 8)
    with FlopCounter() as counter:
        functional.scaled_dot_product_attention(query, key, value, **options).square().sum().backward()
    assert (counter.observed.causal_flops, counter.observed.masked_flops) == (causal, masked)
    again = 0 if "dropout_p" in options else SCORES * keys // M  # only a fused attention computes its scores again
    assert counter.work().by_phase.get("attention_recompute", 0) == again
    assert counter.work().hardware_flops == (2 + 4) * SCORES * keys // M + again
