"""Formulas for the FLOPs of operations; ours replace torch's that are missing or wrong.

A formula receives the operation's arguments, and the result as `out_val`, as in `torch.utils.flop_counter`. Attention
with a causal mask counts like full attention, as in published MFU figures.
"""

from collections.abc import Callable
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

from torch.utils import flop_counter

from perf_callbacks.flops.counting.operands import MATRIX, computed_share, is_sparse, sparse_product, stored_values
from perf_callbacks.flops.work import Kind

Flops = Callable[..., int]


class Formula(NamedTuple):
    """FLOPs of one operation."""

    flops: Flops
    kind: Kind = "matmul"
    again: Callable[..., float] | None = None  # recomputed share of the FLOPs, for the backward of fused attention


def register_flop_formula(operation: Any) -> Callable[[Flops], Flops]:
    """Register a formula for the FLOPs of your own operation.

    The formula receives the operation's arguments, and the operation's result as `out_val`. If the backward is an
    operation of its own, register a second formula for the backward.

        @register_flop_formula(torch.ops.mylib.fused_linear)
        def fused_linear(x, weight, *, out_val):
            return 2 * x.numel() * weight.shape[0]

    Your formula overrides all other formulas. Formulas that you register with
    `torch.utils.flop_counter.register_flop_formula` are used too.
    """

    def register(flops: Flops) -> Flops:
        _registered[name(operation)] = Formula(flops)
        return flops

    return register


def name(operation: Any) -> str:
    """Return the name without its overload, such as "aten::mm"."""
    packet = getattr(operation, "_overloadpacket", operation)
    return str(getattr(packet, "_qualified_op_name", None) or packet.name())


def formula(operation: Any) -> Formula | None:
    called = name(operation)
    ours = _registered.get(called) or _OURS.get(called.removesuffix("_"))  # an operation in place costs the same
    if ours is not None:
        return ours
    packet = getattr(operation, "_overloadpacket", operation)
    flops = flop_counter.flop_registry.get(packet)
    if flops is None:
        return None
    return Formula(flops, "convolution" if "conv" in called else "attention" if "attention" in called else "matmul")


_registered: dict[str, Formula] = {}


def _product(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """[..., m, k] x [..., k, n], [m, k] x [k], or [k] x [k]; operands may be sparse."""
    if is_sparse(a) or is_sparse(b):
        return sparse_product(a, b)
    return int(2 * a.numel() * (b.shape[-1] if b.dim() > 1 else 1))


def _added_product(_added: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    return _product(a, b)


def _linear(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    """A linear layer that torch dispatches as one operation, as for jagged tensors."""
    return int(2 * x.numel() * weight.shape[0])


def _any_product(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Vectors, matrices, broadcast batches of matrices, or nested tensors."""
    if a.is_nested:
        pairs = zip(a._nested_tensor_size().tolist(), b._nested_tensor_size().tolist(), strict=True)  # noqa: SLF001
        return int(2 * sum(prod(of_a) * of_b[-1] for of_a, of_b in pairs))
    if 1 in {a.dim(), b.dim()}:
        return int(2 * max(a.numel(), b.numel()))
    batch = prod(max(sizes) for sizes in zip_longest(a.shape[-3::-1], b.shape[-3::-1], fillvalue=1))
    return int(2 * batch * a.shape[-2] * a.shape[-1] * b.shape[-1])


def _any_product_backward(_grad: Any, a: Any, b: Any, wanted: Any, **_: Any) -> int:
    return int(_any_product(a, b) * sum(wanted))


def _sampled_product(sampled: Any, a: Any, _b: Any, *_: Any, **__: Any) -> int:
    """Computed only at the stored places of a sparse matrix."""
    return int(2 * stored_values(sampled).numel() * a.shape[-1])


def _reduced_product_backward(a: Any, grad: Any, _other: Any, _reduce: Any, _places: Any, wanted: Any, **_: Any) -> int:
    return int(sparse_product(a, grad) * sum(wanted))


def _outer(_added: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    return int(2 * a.numel() * b.numel())


def _grouped(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Each group of rows of `a` has its own matrix; for the gradient of the weights, columns of `a` are grouped."""
    return int(2 * a.shape[-2] * a.shape[-1] * b.shape[-1] * (a.shape[0] if a.dim() == b.dim() == MATRIX + 1 else 1))


def _trilinear(*args: Any, **_: Any) -> int:
    """Sum over a product of three tensors. Missing dimensions are broadcast."""
    full = [list(tensor.shape) for tensor in args[:3]]
    for shape, lacking in zip(full, args[3:6], strict=True):
        for dimension in sorted(lacking):
            shape.insert(dimension, 1)
    return int(2 * prod(max(sizes) for sizes in zip(*full, strict=True)))


def _convolution(x: Any, weight: Any, *_: Any, out_val: Any, **__: Any) -> int:
    return int(2 * x.shape[0] * prod(out_val.shape[2:]) * weight.numel())


def _transposed_convolution(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    return int(2 * x.shape[0] * prod(x.shape[2:]) * weight.numel())


def _time_convolution(x: Any, weight: Any, _bias: Any, pad: int = 0, **_: Any) -> int:
    """`conv_tbc` of [time, batch, channels] and [kernel, in, out] without padding. torch's backward is an `addmm_`."""
    kernel, rows = weight.shape[0], x.shape[0]
    out = rows + 2 * pad - kernel + 1
    pairs = sum(max(0, min(rows + pad - place, out) - max(0, pad - place)) for place in range(kernel))
    return int(2 * pairs * x.shape[1] * weight.shape[1] * weight.shape[2])


def _linear_backward(x: Any, _grad: Any, weight: Any, wanted: Any, **_: Any) -> int:
    return int(_linear(x, weight) * sum(wanted[:2]))


def _many_products(a: Any, b: Any, *_: Any, **__: Any) -> int:
    return sum(_product(*pair) for pair in zip(a, b, strict=True))


def _convolution_backward(*args: Any, **_: Any) -> int:
    """Gradients of input and weight, as many FLOPs as the forward each."""
    grad, x, weight, transposed, wanted = args[0], args[1], args[2], args[7], args[10]
    forward = 2 * x.shape[0] * prod((x if transposed else grad).shape[2:]) * weight.numel()
    return int(forward * sum(wanted[:2]))


def _attention(query: int = 0, *, backward: bool = False, rows: bool = False, starts: int | None = None) -> Formula:
    """Return the formula for an operation of fused attention.

    `query` is the query's position among the arguments; key and value follow. Their shape is [batch, heads, sequence,
    head], with `rows` [batch, sequence, heads, head], and for concatenated sequences [tokens, heads, head]: the
    arguments at `starts` and `starts + 1` then hold the starts of each query and key sequence. The forward computes the
    scores and their product with the values. The backward recomputes the scores, and computes the gradients of scores,
    values, query and key.
    """

    def width(args: Any) -> int:
        of_query, of_value = args[query].shape[-1], args[query + 2].shape[-1]
        return int(3 * of_query + 2 * of_value if backward else of_query + of_value)

    def flops(*args: Any, **_: Any) -> int:
        q, k = args[query], args[query + 1]
        begin = args[starts] if starts is not None and starts < len(args) else None
        if begin is not None:
            of_keys = begin if args[starts + 1] is None else args[starts + 1]  # type: ignore[operator] # not None here
            pairs = int((begin.diff().long() * of_keys.diff().long()).sum())
            return int(2 * q.shape[-2] * pairs * width(args))
        sequence = -3 if rows else -2
        return int(2 * q.numel() // q.shape[-1] * k.shape[sequence] * width(args))

    def again(*args: Any, **_: Any) -> float:
        return float(args[query].shape[-1] / width(args))

    return Formula(flops, "attention", again if backward else None)


def _flex_attention(*, backward: bool = False) -> Formula:
    """Its FLOPs are 0 if its mask is on a device: see `StepObservations.product`."""
    full = _attention(backward=backward)
    return full._replace(flops=lambda *args, **named: int(full.flops(*args, **named) * (computed_share(args) or 0.0)))


def _recurrent(x: Any, weights: Any, *_: Any, **__: Any) -> int:
    """At each time step, each input row passes through each weight matrix."""
    rows = prod(x.shape[:-1])
    return int(2 * rows * sum(weight.numel() for weight in weights if weight.dim() > 1))


def _recurrent_backward(x: Any, weights: Any, *_: Any, **__: Any) -> int:
    return 2 * _recurrent(x, weights)


def _mkldnn_recurrent(x: Any, of_input: Any, of_state: Any, *_: Any, **__: Any) -> int:
    return _recurrent(x, (of_input, of_state))


def _mkldnn_recurrent_backward(x: Any, of_input: Any, of_state: Any, *_: Any, **__: Any) -> int:
    return _recurrent_backward(x, (of_input, of_state))


_OURS: dict[str, Formula] = {
    # torch has no formula
    "aten::_scaled_mm_v2": Formula(_product),
    "aten::_int_mm": Formula(_product),
    "aten::mv": Formula(_product),
    "aten::dot": Formula(_product),
    "aten::vdot": Formula(_product),
    "aten::addmv": Formula(_added_product),
    "aten::addbmm": Formula(_added_product),
    "aten::addr": Formula(_outer),
    "aten::_addmm_activation": Formula(_added_product),
    "aten::_foreach_mm": Formula(_many_products),
    "aten::conv_tbc": Formula(_time_convolution, "convolution"),
    "aten::linear": Formula(_linear),
    "aten::linear_backward": Formula(_linear_backward),
    "aten::matmul": Formula(_any_product),
    "aten::matmul_backward": Formula(_any_product_backward),
    "aten::_grouped_mm": Formula(_grouped),
    "aten::_scaled_grouped_mm": Formula(_grouped),
    "aten::_scaled_grouped_mm_v2": Formula(_grouped),
    "transformers::grouped_mm_fallback": Formula(_grouped),
    "aten::_sparse_addmm": Formula(_added_product),
    "aten::_sparse_sparse_matmul": Formula(_product),
    "aten::_sparse_mm_reduce_impl": Formula(_product),
    "aten::_sparse_mm_reduce_impl_backward": Formula(_reduced_product_backward),
    "aten::sparse_sampled_addmm": Formula(_sampled_product),
    "aten::_trilinear": Formula(_trilinear),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(),
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention(),
    "aten::mkldnn_rnn_layer": Formula(_mkldnn_recurrent),
    "aten::mkldnn_rnn_layer_backward": Formula(_mkldnn_recurrent_backward),
    "aten::_cudnn_rnn": Formula(_recurrent),
    "aten::_cudnn_rnn_backward": Formula(_recurrent_backward),
    "aten::miopen_rnn": Formula(_recurrent),
    "aten::miopen_rnn_backward": Formula(_recurrent_backward),
    "flash_attn::_flash_attn_forward": _attention(rows=True),
    "flash_attn::_flash_attn_varlen_forward": _attention(starts=3),
    "flash_attn::_flash_attn_backward": _attention(1, backward=True, rows=True),
    "flash_attn::_flash_attn_varlen_backward": _attention(1, backward=True, starts=9),
    # torch's formula gives the same result, but first flattens all arguments of the operation
    "aten::mm": Formula(_product),
    "aten::addmm": Formula(_added_product),
    "aten::bmm": Formula(_product),
    "aten::baddbmm": Formula(_added_product),
    # torch has a formula for some of these, which reads their arguments as those of `convolution`
    **{
        f"aten::{called}": Formula(_convolution, "convolution")
        for called in (
            "_conv_depthwise2d",
            "_nnpack_spatial_convolution",
            "_slow_conv2d_forward",
            "conv_depthwise3d",
            "cudnn_convolution",
            "cudnn_convolution_add_relu",
            "cudnn_convolution_relu",
            "miopen_convolution",
            "miopen_convolution_add_relu",
            "miopen_convolution_relu",
            "miopen_depthwise_convolution",
            "mkldnn_convolution",
            "slow_conv3d_forward",
            "slow_conv_dilated2d",
            "slow_conv_dilated3d",
        )
    },
    **{
        f"aten::{called}": Formula(_transposed_convolution, "convolution")
        for called in (
            "cudnn_convolution_transpose",
            "miopen_convolution_transpose",
            "slow_conv_transpose2d",
            "slow_conv_transpose3d",
        )
    },
    # torch's formula forgets the groups
    "aten::convolution_backward": Formula(_convolution_backward, "convolution"),
    # torch's formula reads [batch, sequence, heads, head] as [batch, heads, sequence, head]
    "aten::_flash_attention_forward": _attention(rows=True, starts=3),
    "aten::_flash_attention_backward": _attention(1, backward=True, rows=True, starts=6),
    # older versions of torch refuse keys that several query heads share
    "aten::_scaled_dot_product_flash_attention": _attention(),
    "aten::_scaled_dot_product_efficient_attention": _attention(),
    "aten::_scaled_dot_product_cudnn_attention": _attention(),
    # torch's formulas don't separate the recomputed scores
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, backward=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, backward=True),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _attention(1, backward=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(1, backward=True),
    "aten::_efficient_attention_forward": _attention(rows=True, starts=4),
    "aten::_efficient_attention_backward": _attention(1, backward=True, rows=True, starts=6),
    # not every version of torch has a formula
    "flex_attention": _flex_attention(),
    "flex_attention_backward": _flex_attention(backward=True),
}
