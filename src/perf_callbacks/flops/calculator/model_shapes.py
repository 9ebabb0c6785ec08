"""Sizes and products of a transformer, by its dimensions alone."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from perf_callbacks.flops.calculator.architecture import Architecture, known
from perf_callbacks.flops.calculator.product_shapes import better, padded


class Size(NamedTuple):
    """Size in the products of a model, and the nearest size that tensor cores use well."""

    name: str
    size: int
    better: int
    weights: tuple[int, int] = (0, 0)
    """Elements of the weights with this size, and with the better size. Zeros: no weight has this size."""


def sizes(model: Architecture, tokens: int | None = None) -> list[Size]:
    """Return the sizes that the author of a model chooses.

    >>> [(one.name, one.size, one.better) for one in sizes(Architecture(layers=12, hidden=768, heads=12, vocab=50257))]
    [('width', 768, 768), ('MLP', 3072, 3072), ('vocabulary', 50257, 50304), ('head', 64, 64)]
    """
    weights: Counter[tuple[int, ...]] = Counter()
    for shape, number in _multiplied(model):
        weights[shape] += number
    weights[known(model.vocab, "vocab"), model.width] += model.outputs is not None or not model.tied
    chosen = {"width": model.width, "MLP": _ffn(model), "vocabulary": known(model.vocab, "vocab")}
    found = [Size(name, size, better(size), padded(weights, size, better(size))) for name, size in chosen.items()]
    if model.heads:
        head = model.attention_width // model.heads
        found.append(Size("head", head, better(head)))
    return [*found, *([Size("tokens", tokens, better(tokens))] if tokens else [])]


def products(model: Architecture, tokens: int) -> list[tuple[str, str, str, int]]:
    """Return the products of a forward with the weights, as in a `flops` record."""
    return [
        ("aten::mm", f"[{tokens}, {columns}] x [{columns}, {rows}]", "bfloat16", 2 * tokens * rows * columns * number)
        for (rows, columns), number in _multiplied(model)
    ]


def _ffn(model: Architecture) -> int:
    return model.ffn or 4 * model.width


def _multiplied(model: Architecture) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield the shapes of weights in products (output size, input size) and the number of weights of each shape."""
    layers, experts = known(model.layers, "layers"), model.experts or 1
    width, ffn = model.width, _ffn(model)
    yield (ffn, width), layers * experts * (2 if model.gated else 1)
    yield (width, ffn), layers * experts
    yield (model.attention_width, width), layers
    if model.outputs != 0:
        yield (known(model.vocab, "vocab") if model.outputs is None else model.outputs, width), 1
