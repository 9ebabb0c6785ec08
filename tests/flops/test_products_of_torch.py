"""Each operation of torch whose name speaks of a product is counted, or makes the number a lower bound, or is none."""

import re

import pytest
import torch
from flops.products import inputs, layer

from perf_callbacks.flops.count_records import counted
from perf_callbacks.flops.counting import counter as counters
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.counting.observed import StepObservations

SPEAKS_OF_PRODUCTS = re.compile(
    r"mm|matmul|conv|linear|attention|attn|rnn|lstm|gru|cdist|dot|einsum|outer|multi_head|gemm|fft|solve|cholesky|inverse|det(?!ach)"
    r"|svd|eig|qr|pinv|(^|_)(mv|addmv|addr|ger|kron|lu)(_|$)"
)

NO_PRODUCTS = {
    "gamma functions and windows": "digamma lgamma polygamma mvlgamma igamma igammac gamma standard_gamma "
    "standard_gamma_grad foreach_lgamma hamming_window",
    "the largest and smallest so far": "cummax cummin cummax_helper cummin_helper",
    "interpolation, element by element": "upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d "
    "upsample_linear1d_backward upsample_trilinear3d upsample_trilinear3d_backward upsample_bilinear2d_aa "
    "upsample_bilinear2d_aa_backward",
    "gates, element by element": "thnn_fused_gru_cell thnn_fused_gru_cell_backward thnn_fused_lstm_cell "
    "thnn_fused_lstm_cell_backward_impl thnn_differentiable_gru_cell_backward thnn_differentiable_lstm_cell_backward "
    "gelu gelu_backward",
    "roots": "sqrt rsqrt foreach_sqrt foreach_rsqrt",
    "another order of indices or weights": "convert_indices_from_coo_to_csr convert_indices_from_csr_to_coo "
    "cudnn_rnn_flatten_weight convert_weight_to_int4pack convert_weight_to_int4pack_for_cpu "
    "mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight slice_inverse "
    "nested_get_jagged_dummy lu_unpack dyn_quant_pack_4bit_weight",
    "frequencies": "fft_fftfreq fft_rfftfreq",
    "vectors in space": "linalg_cross",
    "sums, and norms": "embedding_bag_per_sample_weights_backward weight_norm_interface weight_norm_interface_backward",
}
"""With the reason. Without underscores at either end."""


def speaking():
    """Operations of torch that are not taken apart into others before anybody sees them."""
    for called in sorted({schema.name for schema in torch._C._jit_get_all_schemas()}):
        namespace, _, base = called.partition("::")
        operation = getattr(torch.ops.aten, base, None) if namespace == "aten" else None
        if operation is not None and SPEAKS_OF_PRODUCTS.search(base) and not _taken_apart(operation):
            yield base, operation


def _taken_apart(operation):
    try:
        names = [getattr(operation, overload).name() for overload in operation.overloads()]
        return all(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd") for name in names)
    except RuntimeError:  # of TorchScript alone
        return True


def test_each_product_is_counted_or_marks_a_lower_bound_or_is_none():
    """The list may name operations that this version of torch lacks."""
    none, observations = {name for names in NO_PRODUCTS.values() for name in names.split()}, StepObservations()
    missed, wrong = [], []
    for base, operation in speaking():
        facts = observations.sort(getattr(operation, operation.overloads()[0]))
        covered = facts.formula is not None or facts.opaque
        if not covered and none.isdisjoint([base.strip("_"), base.removesuffix("_").strip("_")]):
            missed.append(base)
        if covered and base.strip("_") in none:
            wrong.append(base)
    assert (missed, wrong) == ([], [])


@pytest.mark.parametrize(
    "act",
    [
        lambda: torch.linalg.solve(torch.eye(3), torch.ones(3, 1)),
        lambda: torch.cdist(torch.ones(30, 3), torch.ones(30, 3)),
        lambda: torch.ops.aten._weight_int8pack_mm(
            torch.ones(4, 32), torch.ones(8, 32, dtype=torch.int8), torch.ones(8)
        ),
    ],
)
def test_a_product_without_a_formula_makes_a_lower_bound(act):
    with FlopCounter() as counter:
        layer()(inputs())
        act()
    assert counted(counter, 1, None).lower_bound


@pytest.mark.parametrize(("owner", "part"), [(counters, "phase"), (StepObservations, "product")])
def test_trouble_of_our_own_does_not_make_a_lower_bound(monkeypatch, owner, part):
    monkeypatch.setattr(owner, part, lambda *_: 1 / 0)
    model, x = layer(), inputs()
    with FlopCounter() as counter:
        model(x).sum().backward()
    record = counted(counter, 1, None)
    assert record.errors
    assert not record.lower_bound
    assert record.by_phase == {"forward": 2 * 4 * 8 * 6, "backward": 2 * 4 * 8 * 6}


def test_lines_of_a_directory_of_the_user_named_torch_are_named(tmp_path):
    file = tmp_path / "torch" / "perf_callbacks" / "train.py"
    source = compile("def call(function):\n    return function()\n", str(file), "exec")
    names, observations = {}, StepObservations()
    exec(source, names)
    names["call"](observations.value_read)
    assert observations.values_read == {f"{file.as_posix()}:2": 1}
