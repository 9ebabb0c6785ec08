"""FLOPs of operations in a trace from their input shapes. A multiply-add counts as 2."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod

from perf_callbacks.profiles import kernel_classes
from perf_callbacks.profiles.host import Call
from perf_callbacks.profiles.trace_events import number

Shapes = Sequence[Sequence[int]]

_COUNTED = frozenset({kernel_classes.CONTRACTION, kernel_classes.ATTENTION, kernel_classes.OPTIMIZER})


def innermost(operations: Iterable[Call], kind: str) -> tuple[Call | None, float | None]:
    """A `kind` such as a copy or a sum has no FLOPs, even as a part of a matrix product."""
    for call in operations:
        given = number(call.arguments.flops)
        if given:
            return call, given
        formula = _FORMULAS.get(call.name)
        if formula is not None:
            return (call, _computed(call, formula)) if kind in _COUNTED else (None, None)
    return None, None


def _computed(call: Call, formula: Callable[[Shapes, Sequence[object]], int]) -> float | None:
    """Return None if the trace has no usable shapes."""
    shapes, values = call.arguments.shapes, call.arguments.values
    try:
        return float(formula(shapes, values if isinstance(values, list) else ())) or None
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None


def _product(shapes: Shapes, _: Sequence[object], *, first: int = 0) -> int:
    """Product of [..., m, k] with a matrix [..., k, n] or a vector [k]."""
    left, right = shapes[first], shapes[first + 1]
    return 2 * prod(left) * (right[-1] if len(right) > 1 else 1)


def _attention(shapes: Shapes, _: Sequence[object], *, first: int = 0, of_key: int = 1, of_value: int = 1) -> int:
    """[batch, heads, tokens, size] without masks; `of_key` and `of_value` are products of these sizes."""
    query, key, value = shapes[first : first + 3]
    return 2 * prod(query[:-1]) * key[-2] * (of_key * query[-1] + of_value * value[-1])


def _convolution(shapes: Shapes, values: Sequence[object]) -> int:
    """Each output element is a dot product with the weights of its channel."""
    image, weight = shapes[0], shapes[1]
    stride, padding, dilation = [json.loads(str(values[place])) for place in (3, 4, 5)]
    if str(values[6]).lower() not in {"false", "0"}:  # transposed: each element of the image
        return 2 * prod(image) * prod(weight[1:])
    sizes = [
        (size + 2 * _at(padding, place) - _at(dilation, place) * (kernel - 1) - 1) // _at(stride, place) + 1
        for place, (size, kernel) in enumerate(zip(image[2:], weight[2:], strict=True))
    ]
    return 2 * image[0] * prod(sizes) * prod(weight)


def _convolution_backward(shapes: Shapes, values: Sequence[object]) -> int:
    """The gradients of the image and of the weights take as many FLOPs as the forward each."""
    gradient, image, weight = shapes[:3]
    transposed = str(values[7]).lower() not in {"false", "0"}
    wanted = json.loads(str(values[10]).lower())[:2]
    return int(sum(wanted)) * 2 * prod(image if transposed else gradient) * prod(weight[1:])


def _at(values: Sequence[int], place: int) -> int:
    """A single value applies to all dimensions."""
    return values[place] if len(values) > 1 else values[0]


_FORMULAS: dict[str, Callable[[Shapes, Sequence[object]], int]] = {
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::mv": _product,
    "aten::dot": _product,
    "aten::_scaled_mm": _product,
    "aten::addmm": partial(_product, first=1),
    "aten::baddbmm": partial(_product, first=1),
    "aten::addmv": partial(_product, first=1),
    "aten::mkldnn_linear": lambda shapes, _: 2 * prod(shapes[0]) * shapes[1][0],
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}
for _name in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"):
    _FORMULAS[f"aten::_scaled_dot_product_{_name}"] = _attention
    _FORMULAS[f"aten::_scaled_dot_product_{_name}_backward"] = partial(_attention, first=1, of_key=3, of_value=2)
